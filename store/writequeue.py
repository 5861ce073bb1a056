"""What waits to be written, in order: offers, which may be dropped, and orders, which may not."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from store.insertion import Job
from store.update import Update


@dataclass(slots=True)
class Order:
    """A change in a transaction of its own. `done` is set after its commit, or after `error` was."""

    call: Callable[[Update], Any]
    sync: bool = False
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done.set()


class WriteQueue:
    """First in, first out, bounded by the lent bytes of its offers.

    Its owner holds a lock around each call.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._items: deque[Job | Order] = deque()
        self.n_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def has_order(self) -> bool:
        """True when somebody waits, so that a pause would be felt."""
        return any(isinstance(item, Order) or item.is_save for item in self._items)

    def push_order(self, order: Order) -> None:
        self._items.append(order)

    def push_job(self, job: Job) -> list[Job]:
        """Append `job`; return the jobs given up for it.

        The oldest waiting offers go first. If that does not suffice `job` itself goes, unless it is a save or
        the queue is empty: one offer larger than the bound is better written than never.
        """
        given_up: list[Job] = []
        waiting = deque(
            item for item in self._items if isinstance(item, Job) and not item.is_save and not item.started
        )
        while waiting and self.n_bytes + job.n_bytes > self._limit:
            oldest = waiting.popleft()
            self.remove(oldest)
            given_up.append(oldest)
        if self.n_bytes and self.n_bytes + job.n_bytes > self._limit and not job.is_save:
            return [*given_up, job]
        self._items.append(job)
        self.n_bytes += job.n_bytes
        return given_up

    def recall(self) -> list[Job]:
        """Return the offers given up; of those under way the rest is not to be written."""
        jobs = [item for item in self._items if isinstance(item, Job) and not item.is_save]
        given_up = [job for job in jobs if not job.started]
        for job in given_up:
            self.remove(job)
        for job in jobs:
            job.recalled = True
        return given_up

    def head(self, at_most_bytes: int) -> Order | list[Job] | None:
        """What to do next: an order, which is taken out, or the next jobs, which stay until `remove`."""
        if not self._items:
            return None
        if isinstance(self._items[0], Order):
            order = self._items.popleft()
            assert isinstance(order, Order)
            return order
        jobs: list[Job] = []
        n_bytes = 0
        for item in self._items:
            if isinstance(item, Order) or n_bytes >= at_most_bytes:
                break
            item.started = True
            jobs.append(item)
            n_bytes += item.n_bytes
        return jobs

    def behind(self, job: Job) -> Job | None:
        """The job right behind `job`, not to be dropped any more; None when there is an order or nothing."""
        i = self._items.index(job) + 1 if job in self._items else len(self._items)
        item = self._items[i] if i < len(self._items) else None
        if not isinstance(item, Job):
            return None
        item.started = True
        return item

    def remove(self, job: Job) -> None:
        self._items.remove(job)
        self.n_bytes -= job.n_bytes

    def drain(self) -> list[Job | Order]:
        """Take everything out."""
        items = list(self._items)
        self._items.clear()
        self.n_bytes = 0
        return items
