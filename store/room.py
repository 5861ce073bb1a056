"""Keeping the store within its budget and the disk out of trouble."""

import logging
import shutil
from collections.abc import Callable

from store.environment import Environment
from store.insertion import evict
from store.records import Ledger
from store.statistics import Counters
from store.update import read_ledger, run_update

HIGH_WATER = 0.95
_SLACK = 0.02
VICTIMS_PER_COMMIT = 64
_REUSABLE = 0.9
log = logging.getLogger("store")


class Room:
    """Makes room before a batch is written. Used by the writer thread."""

    def __init__(
        self, environment: Environment, budget_bytes: int, min_free_bytes: int, counters: Counters
    ) -> None:
        self._env = environment
        self._budget = budget_bytes
        self._min_free = min_free_bytes
        self._counters = counters
        self.shortage = ""

    def look_at_disk(self) -> None:
        """Update `shortage`: why the disk keeps the store from growing, empty when it does not."""
        free = shutil.disk_usage(self._env.directory).free
        self.shortage = "" if free >= self._min_free else f"the disk has only {free >> 20} MiB left"

    def why_never(self, n_bytes: int) -> str:
        """Why `n_bytes` more could not be kept even if all that is not saved went; empty when they could."""
        ledger = self._env.read(lambda txn: read_ledger(self._env, txn))
        if ledger.pinned_bytes + n_bytes <= HIGH_WATER * self._budget:
            return ""
        return f"{n_bytes >> 20} MiB do not fit into the store's budget of {self._budget >> 20} MiB"

    def has(self, ledger: Ledger, incoming: int) -> bool:
        """Whether `incoming` more bytes fit without evicting anything, while a transaction is open."""
        return ledger.live_bytes + incoming <= self._limit()[0]

    def make(self, incoming: int, is_pinned: Callable[[bytes], bool]) -> str:
        """Evict until `incoming` more bytes fit; the reason why they cannot, empty when they do."""
        limit, why = self._limit()
        ledger = self._env.read(lambda txn: read_ledger(self._env, txn))
        if ledger.live_bytes + incoming <= limit:
            return ""
        if ledger.pinned_bytes + incoming > limit:
            return why
        self.evict_to(int(limit - incoming - _SLACK * limit), is_pinned)
        ledger = self._env.read(lambda txn: read_ledger(self._env, txn))
        return "" if ledger.live_bytes + incoming <= limit else why

    def _limit(self) -> tuple[float, str]:
        """Live bytes that may be reached. On a full disk only pages freed inside the file are used."""
        limit = HIGH_WATER * self._budget
        self.look_at_disk()
        if not self.shortage:
            return limit, f"no room within the store's budget of {self._budget >> 20} MiB"
        return min(limit, _REUSABLE * self._env.file_bytes()), self.shortage

    def evict_to(self, down_to: int, is_pinned: Callable[[bytes], bool]) -> None:
        """Remove the least valuable blocks until `down_to` live bytes remain, or only held ones.

        Freed pages can be used again only after one more commit that writes something.
        """
        total = 0
        while True:
            gone = run_update(self._env, lambda update: evict(update, down_to, is_pinned, VICTIMS_PER_COMMIT))
            total += gone.n
            self._counters.add_evicted(gone.n_blocks, gone.n_points, gone.n_bytes)
            if gone.n < VICTIMS_PER_COMMIT:
                break
        if total:
            run_update(self._env, lambda update: None)
            log.info("the store evicted %d blocks and points to keep its budget", total)
