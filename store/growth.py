"""The data file grows before it must: where the next batches go there is disk and memory already.

A commit that appends waits for the file system to find blocks, and for the kernel to find pages for its
cache; who reads it first waits for their mapping. The pages are the dear part on a virtual machine that hands
free memory back to its host: there 11 MB took 29 ms to commit, and 8 ms into pages that were there. So what
was allocated and never written is read, which no disk is asked for.
"""

import contextlib
import os
import shutil

from store.environment import Environment
from store.mapping import HUGE_PAGE, Mapping

AHEAD_BYTES = 64 << 20
STEP_BYTES = HUGE_PAGE


class Growth:
    """Used by the writer thread between its batches. No failure matters: commits grow the file as ever."""

    def __init__(self, environment: Environment, budget_bytes: int, min_free_bytes: int) -> None:
        self._env = environment
        self._budget = budget_bytes
        self._min_free = min_free_bytes
        self._goal = 0
        self._ready = 0
        self._mapping: Mapping | None = None
        self._n_attached = 0

    def step(self) -> bool:
        """A step of at most `STEP_BYTES` towards the goal, which moves on with the file; is there more to do?

        A small file is doubled at most, and none passes the budget for it.
        """
        used = self._env.used_bytes()
        ahead = min(AHEAD_BYTES, used, self._budget - used)
        if self._env.n_attached != self._n_attached or not used <= self._goal <= used + AHEAD_BYTES:
            self._n_attached = self._env.n_attached
            self._goal = self._ready = used  # another file or place, or grown past it
        with contextlib.suppress(OSError):
            if self._goal - used < ahead // 2:
                self._goal = self._allocated(used + ahead)
                self._mapping = Mapping(self._env.data_file)
            return self._fetch(max(self._ready, used))
        self._goal = self._ready = used
        return False

    def _allocated(self, end: int) -> int:
        """Where the file ends that should reach `end`: less far where others need the disk."""
        with self._env.data_file.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            missing = end - size
            if missing > 0 and shutil.disk_usage(self._env.directory).free - missing >= self._min_free:
                os.posix_fallocate(file.fileno(), size, missing)
            return min(end, os.fstat(file.fileno()).st_size)

    def _fetch(self, start: int) -> bool:
        n_bytes = min(STEP_BYTES - start % STEP_BYTES, self._goal - start)
        self._ready = start + n_bytes
        return n_bytes > 0 and self._mapping is not None and self._mapping.populate(start, n_bytes)
