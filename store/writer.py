"""The one thread that writes: a bounded queue in front of it, one function per transaction behind it.

Offers are written behind the requests that made them; what cannot be written soon enough is dropped, oldest
first, and nobody waits. Saves and other orders are waited for by the thread that gives them.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from store.batch import BatchWriter
from store.breaker import Breaker
from store.environment import Environment
from store.errors import Damaged, StoreClosed, StoreError, WriteRefused
from store.growth import STEP_BYTES, Growth
from store.insertion import Job
from store.ownership import Ownership
from store.pins import Pins
from store.pruning import Selection, prune_some
from store.recovery import Recovery
from store.requests import Outcome, WriteResult
from store.room import Room
from store.statistics import Counters
from store.update import Update, run_update
from store.writequeue import Order, WriteQueue

BATCH_BYTES = 16 << 20
HURRIED_BYTES = 64 << 20
IDLE_S = 5.0
TOUCH_S = 30.0
SLOW_S = 10.0
_MAX_TOUCHES = 100_000
_RECALLED = WriteResult(Outcome.DROPPED, reason="the memory was needed")
_FULL = "the store's queue is full"
_DROPS = {_FULL: "dropped_queue", _RECALLED.reason: "dropped_memory"}
T = TypeVar("T")
log = logging.getLogger("store")


class Writer:
    """Owns the right to write. Every public method may be called from any thread."""

    def __init__(
        self,
        environment: Environment,
        room: Room,
        growth: Growth,
        pins: Pins,
        distrusted: set[bytes],
        counters: Counters,
        breaker: Breaker,
        queue_bytes: int,
        ownership: Ownership,
    ) -> None:
        self._env = environment
        self._room = room
        self._growth = growth
        self._grows = False
        self._pins = pins
        # The end of what was written for a save keeps all of it until the save has its name.
        self._saving = Pins()
        self._batches = BatchWriter(
            environment, room, distrusted, self._is_pinned, self._saving.hold, self._behind
        )
        self._counters = counters
        self._recovery = Recovery(environment, ownership, breaker, counters, self._drop_all)
        self._condition = threading.Condition()
        self._queue = WriteQueue(queue_bytes)
        self._touches: dict[bytes, tuple[int, int]] = {}
        self._touched_at = time.monotonic()
        self._pace: float | None = None
        self._stop_at: float | None = None
        self._broken = ""
        self._is_busy = False
        self._busy_since = time.monotonic()
        self._n_steps = 0
        self._n_steps_at_recall = -1
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        environment.bind_writer(self._thread)
        self._thread.start()

    @property
    def queue_bytes(self) -> int:
        return self._queue.n_bytes

    @property
    def is_dead(self) -> bool:
        return bool(self._broken)

    @property
    def trouble(self) -> str:
        """Why nothing is written at present, empty when all is well."""
        return self._broken or self._recovery.reason

    @property
    def complaint(self) -> str:
        """Like `trouble`, also when the disk is full, or does not answer; nobody else could tell of that."""
        return self.trouble or self._silence or self._room.shortage

    @property
    def silence_s(self) -> float:
        """For how long the disk has not answered, in seconds; 0 when it was not asked."""
        return time.monotonic() - self._busy_since if self._is_busy else 0.0

    def stack(self) -> str:
        """Where the thread is at present, as a traceback shows it."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame is not None else ""

    @property
    def _silence(self) -> str:
        seconds = self.silence_s
        return f"the disk has not answered for {seconds:.0f} s" if seconds > SLOW_S else ""

    def set_pace(self, mib_per_second: float | None) -> None:
        with self._condition:
            self._pace = mib_per_second
            self._condition.notify_all()

    def touch(self, block: bytes) -> None:
        """Note a use of a block; written with a later batch, so a crash may lose it."""
        now_ms = int(time.time() * 1000)
        with self._condition:
            if len(self._touches) < _MAX_TOUCHES:
                self._touches[block] = (now_ms, self._touches.get(block, (0, 0))[1] + 1)

    def offer(self, job: Job) -> None:
        """Queue a job; it is settled through its request's `on_done`, possibly before this returns."""
        with self._condition:
            reason = self.trouble or ("the store is closed" if self._stop_at is not None else "")
            given_up = [job] if reason else self._queue.push_job(job)
            self._condition.notify_all()
        for dropped in given_up:
            self._settle(dropped, WriteResult(Outcome.DROPPED, reason=reason or _FULL))

    def recall(self) -> bool:
        """Give back at once the offers that wait, and the others with the next commit; saves stay.

        True when something was given back, or committed since the last call.
        """
        with self._condition:
            given_up = self._queue.recall()
            has_come_on = self._n_steps != self._n_steps_at_recall
            self._n_steps_at_recall = self._n_steps
            self._condition.notify_all()
        for job in given_up:
            self._settle(job, _RECALLED)
        return has_come_on or bool(given_up)

    def order(self, call: Callable[[Update], T], timeout: float, *, sync: bool = False) -> T:
        """Run `call` in a transaction after everything queued before, and wait for its commit.

        With `sync` the commit also survives a power loss. Raises what `call` raises, which undoes it, and
        `WriteRefused` when the store cannot be written or does not answer within `timeout` seconds.
        """
        order = Order(call, sync)
        self._enqueue(order)
        if not order.done.wait(timeout):
            raise WriteRefused(f"the store did not answer within {timeout:g} s")
        if order.error is not None:
            raise order.error
        result: T = order.result
        return result

    def end_hold(self, blocks: Sequence[bytes]) -> None:
        """What was written for a save has its name now."""
        for block in blocks:
            self._saving.release(block)

    def prune(self, down_to: int, selection: Selection, timeout: float) -> int:
        """Evict of `selection` until `down_to` live bytes remain; return how many went."""
        total = 0
        while True:
            gone = self.order(lambda update: prune_some(update, down_to, selection, self._is_pinned), timeout)
            if not gone.n:
                return total
            total += gone.n
            self._counters.add_evicted(gone.n_blocks, gone.n_points, gone.n_bytes)

    def post(self, call: Callable[[Update], Any]) -> None:
        """Like `order`, but nobody waits and nobody hears of a failure."""
        try:
            self._enqueue(Order(call))
        except StoreError as error:
            log.debug("a change to the store was not made: %s", error)

    def _enqueue(self, order: Order) -> None:
        with self._condition:
            if self._stop_at is not None:
                raise StoreClosed("the store is closed")
            if self.trouble:
                raise WriteRefused(f"the store is read-only: {self.trouble}")
            self._queue.push_order(order)
            self._condition.notify_all()

    def poison(self) -> None:
        """In a forked child, where the thread does not exist and the lock may have been held."""
        self._condition = threading.Condition()
        self._broken = "the process was forked"

    def flush(self, timeout: float) -> bool:
        """Wait until everything offered so far is settled; False when that takes longer than `timeout` s."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._queue and not self._is_busy, timeout)

    def stop(self, deadline: float) -> bool:
        """Write what is queued for up to `deadline` seconds, drop the rest, end the thread.

        True when the thread ended in good order and its last commit is durable. A commit under way may take a
        few seconds longer.
        """
        with self._condition:
            if self._stop_at is None:
                self._stop_at = time.monotonic() + deadline
            self._condition.notify_all()
        self._thread.join(deadline + 5.0)
        return not self._thread.is_alive() and not self.trouble

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            self._broken = f"the writer ended: {error!r}"
            log.exception("the store's writer ended: persistence is off until the next start")
        self._drop_all(self._broken or "the store was closed before it could be written")

    def _step(self) -> bool:
        """One unit of work; False when it is time to end."""
        work = self._next()
        try:
            if isinstance(work, Order):
                self._take_order(work)
            elif work:
                self._recovery.run(partial(self._run_jobs, work))
            elif self._stop_at is not None:
                self._recovery.run(self._finish)
                return False
            elif self._grows:
                self._recovery.run(self._grow)
            else:
                self._idle()
        finally:
            with self._condition:
                self._is_busy = False
                self._n_steps += work is not None
                self._condition.notify_all()
        return True

    def _next(self) -> Order | list[Job] | None:
        """The order or the jobs at the head of the queue; None when idle or out of time."""
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._stop_at is not None, self._patience)
            if self._stop_at is not None and time.monotonic() > self._stop_at:
                return None
            work = self._queue.head(self._batch_bytes)
            self._is_busy = work is not None
            self._busy_since = time.monotonic()
            return work

    def _take_order(self, order: Order) -> None:
        try:
            failure = self._recovery.run(partial(self._run_order, order))
        except BaseException as error:
            order.fail(WriteRefused(f"the store failed: {error!r}"))
            raise
        if failure is not None:
            order.fail(failure)

    def _run_order(self, order: Order) -> None:
        self._recovery.check_file()
        try:
            order.result = run_update(self._env, order.call)
        except Damaged:
            raise
        except (StoreError, ValueError) as error:
            order.error = error
        else:
            if order.sync:
                self._env.sync()
        order.done.set()

    def _run_jobs(self, waiting: list[Job]) -> None:
        """One batch of 16 MiB, then callers hear of it.

        While somebody waits it may have 64 MiB, for each commit waits for the disk.
        """
        started = time.monotonic()
        self._recovery.check_file()
        written = self._batches.write(waiting, self._take_touches, self._batch_bytes)
        if any(progress.saved for _, progress in written.reached):
            self._env.sync()
        n_bytes = written.n_bytes
        elapsed = time.monotonic() - started
        self._counters.add(bytes_written=n_bytes, commits=1, commit_seconds=elapsed)
        if elapsed > SLOW_S:
            log.warning("the store's disk is slow: a commit of %d MiB took %.1f s", n_bytes >> 20, elapsed)
        for job, reached in written.reached:
            job.progress = reached
            if job.is_complete(reached):
                self._finish_job(job, job.result())
            elif job.recalled:
                self._finish_job(job, _RECALLED)
        self._grows = True
        self._breathe(n_bytes, elapsed)

    def _grow(self) -> None:
        self._grows = False  # unless all goes well
        self._grows = self._growth.step()

    @property
    def _patience(self) -> float:
        """How long to wait for something to do, in seconds."""
        if not self._grows:
            return IDLE_S
        return STEP_BYTES / (self._pace * (1 << 20)) if self._pace else 0.0

    @property
    def _batch_bytes(self) -> int:
        with self._condition:
            return HURRIED_BYTES if self._queue.has_order else BATCH_BYTES

    def _behind(self, job: Job) -> Job | None:
        with self._condition:
            return self._queue.behind(job)

    def _is_pinned(self, block: bytes) -> bool:
        return block in self._pins or block in self._saving

    def _take_touches(self) -> dict[bytes, tuple[int, int]]:
        with self._condition:
            touches, self._touches = self._touches, {}
        self._touched_at = time.monotonic()
        return touches

    def _breathe(self, n_bytes: int, elapsed: float) -> None:
        """Stay within the pace, unless somebody waits."""
        with self._condition:
            if self._pace:
                pause = n_bytes / (self._pace * (1 << 20)) - elapsed
                self._condition.wait_for(self._is_urgent, max(0.0, pause))

    def _is_urgent(self) -> bool:
        return self._stop_at is not None or not self._pace or self._queue.has_order

    def _idle(self) -> None:
        """Between the requests: see whether a broken disk works again, write down what was used."""
        if not self._recovery.reason:
            self._recovery.run(self._look_around)
        self._recovery.try_again()
        if self._touches and time.monotonic() - self._touched_at > TOUCH_S and not self._recovery.reason:
            self._recovery.run(self._write_touches)

    def _look_around(self) -> None:
        self._recovery.check_file()
        self._room.look_at_disk()
        if self._env.oldest_reader_s() > SLOW_S:
            log.warning("a read of the store lasts %.0f s already", self._env.oldest_reader_s())

    def _write_touches(self) -> None:
        touches = self._take_touches()

        def body(update: Update) -> None:
            for block, (used_ms, hits) in touches.items():
                update.touch(block, used_ms, hits)

        run_update(self._env, body)

    def _finish(self) -> None:
        if not self._recovery.reason:
            self._write_touches()
            self._env.sync()

    def _drop_all(self, reason: str) -> None:
        with self._condition:
            items = self._queue.drain()
            self._condition.notify_all()
        for item in items:
            if isinstance(item, Order):
                item.fail(WriteRefused(f"the store cannot be written: {reason}"))
            else:
                self._settle(item, WriteResult(Outcome.DROPPED, reason=reason))

    def _finish_job(self, job: Job, result: WriteResult) -> None:
        self.end_hold(job.progress.held)
        with self._condition:
            self._queue.remove(job)
        self._settle(job, result)

    def _settle(self, job: Job, result: WriteResult) -> None:
        if result.outcome is Outcome.DROPPED:
            self._counters.add(**{_DROPS.get(result.reason, "dropped_trouble"): 1})
        elif result.outcome is Outcome.FAILED:
            self._counters.add(failed=1)
        try:
            job.request.on_done(result)
        except Exception:
            log.exception("the owner of an offer failed to take it back")
