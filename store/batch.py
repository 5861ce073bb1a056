"""One batch of jobs in one transaction: room is made, blocks are put, what came meanwhile is taken along."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from store.environment import Environment
from store.insertion import Job, Progress, missing_bytes, put_next
from store.room import Room
from store.update import Update, run_update

BATCH_S = 0.2

Touches = Mapping[bytes, tuple[int, int]]
"""Of each block that was used: when, in ms of Unix time, and how often."""


@dataclass(frozen=True, slots=True)
class Written:
    """The bytes that were committed, and how far each job has come by that."""

    n_bytes: int
    reached: list[tuple[Job, Progress]]


class BatchWriter:
    """Writes batches, on the writer's thread.

    `is_pinned` tells what must not be evicted, `behind` which job waits right behind another, and `hold` is
    told what was written for a save.
    """

    def __init__(
        self,
        environment: Environment,
        room: Room,
        distrusted: set[bytes],
        is_pinned: Callable[[bytes], bool],
        hold: Callable[[Sequence[bytes]], None],
        behind: Callable[[Job], Job | None],
    ) -> None:
        self._env = environment
        self._room = room
        self._distrusted = distrusted
        self._is_pinned = is_pinned
        self._hold = hold
        self._behind = behind

    def write(self, waiting: list[Job], take_touches: Callable[[], Touches], at_most: int) -> Written:
        """Write what was used, and blocks until `at_most` bytes or 200 ms.

        A job for which there is no room fails.
        A commit takes as long as the disk, whatever is in it, so jobs that come while blocks are put need not
        wait for the next one.
        """
        jobs, reason = self._with_room(waiting, at_most)
        if reason:
            return Written(0, [(jobs[0], replace(jobs[0].progress, reason=reason))])
        touches, reached = take_touches(), [(job, replace(job.progress)) for job in jobs]
        n_bytes = run_update(self._env, lambda update: self._put(update, reached, touches, at_most))
        return Written(n_bytes, reached)

    def _with_room(self, jobs: list[Job], at_most: int) -> tuple[list[Job], str]:
        """Those of `jobs` for whose next blocks there is room; or the one that cannot have any, and why."""
        while True:
            own = frozenset().union(*(job.ids for job in jobs))
            missing = [self._env.read(partial(missing_bytes, self._env, job=job)) for job in jobs]
            reason = self._room.why_never(max(map(sum, missing))) or self._room.make(
                sum(_next_batch(sizes, at_most) for sizes in missing), partial(self._is_held, own)
            )
            if not reason or len(jobs) == 1:
                return jobs, reason
            jobs = jobs[:1]

    def _is_held(self, own: frozenset[bytes], block: bytes) -> bool:
        return block in own or self._is_pinned(block)

    def _put(
        self, update: Update, reached: list[tuple[Job, Progress]], touches: Touches, at_most: int
    ) -> int:
        for block, (used_ms, hits) in touches.items():
            update.touch(block, used_ms, hits)
        deadline = time.monotonic() + BATCH_S
        n_bytes = 0
        for job, progress in reached:  # grows meanwhile
            while not job.is_complete(progress):
                n_bytes += put_next(update, job, progress, self._is_pinned, self._distrusted)
                if job.is_save:
                    self._hold((progress.last,))
                if n_bytes >= at_most or time.monotonic() > deadline:
                    return n_bytes
            if job is reached[-1][0]:
                late = self._come_meanwhile(update, job)
                reached += [(late, replace(late.progress))] if late else []
        return n_bytes

    def _come_meanwhile(self, update: Update, job: Job) -> Job | None:
        """The job that waits right behind `job`, if nothing must be evicted for it."""
        late = self._behind(job)
        if late is None:
            return None
        n_bytes = sum(missing_bytes(self._env, update.txn, job=late))
        late.started = self._room.has(update.ledger, n_bytes)
        return late if late.started else None


def _next_batch(missing: list[int], at_most: int) -> int:
    """Bytes that the next transaction may add for a job: a batch and the step that passes its bound."""
    total = 0
    for n_bytes in missing:
        total += n_bytes
        if total >= at_most:
            break
    return total
