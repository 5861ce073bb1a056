"""Child of test_opening: fills a store, says so, and waits to be killed.

With "sparse" the bytes of blocks are zeros, and their pages are given back to the file system as soon as they
are written, which takes no longer than memory does: the file is as long as a full one and nearly empty.
"""

import ctypes
import os
import sys
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

import lmdb
import numpy as np

from store import BLOCK, BlockData, Segment, Store, WriteRequest, WriteResult
from tests.store import kv

N_SEGMENTS, BLOCKS_PER_PROMPT = 6, 16
PAGE = 4096
PUNCH_HOLE_KEEP_SIZE = 3


class Puncher:
    """Gives pages of a growing file back that begin with zeros; pages of tables begin with their number."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR)
        self._done = os.fstat(self._fd).st_size
        self._fallocate = ctypes.CDLL(None, use_errno=True).fallocate

    def punch(self) -> None:
        end = os.fstat(self._fd).st_size // PAGE * PAGE
        shape = ((end - self._done) // PAGE, PAGE // 8)
        pages = np.memmap(self._path, np.uint64, "r", self._done, shape)
        is_zero = ~pages[:, :2].any(axis=1)
        edges = np.flatnonzero(np.diff(is_zero, prepend=False, append=False))
        for first, last in edges.reshape(-1, 2).tolist():
            at, length = self._done + first * PAGE, (last - first) * PAGE
            arguments = ctypes.c_int64(at), ctypes.c_int64(length)
            if self._fallocate(self._fd, PUNCH_HOLE_KEEP_SIZE, *arguments):
                raise OSError(ctypes.get_errno(), "the file system knows no holes")
        self._done = end

    def close(self) -> None:
        """What is left is on the disk, so that nobody waits for it who syncs something else."""
        os.fsync(self._fd)
        os.close(self._fd)


def main() -> None:
    folder, n_blocks, block_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    is_sparse = sys.argv[4:] == ["sparse"]
    with patch("lmdb.open", partial(lmdb.open, sync=False) if is_sparse else lmdb.open):
        store = Store.open(folder, budget_bytes=64 << 30, min_free_bytes=0)
    root = store.register(kv.FINGERPRINT)
    puncher = Puncher(folder / "store" / "data.mdb") if is_sparse else None
    highest = 1 if is_sparse else 255
    data = np.random.default_rng(0).integers(0, highest, max(16, block_bytes // N_SEGMENTS), dtype=np.uint8)
    segments = tuple(Segment(f"g{i}", "filler/1", data.size, data) for i in range(N_SEGMENTS))
    for seed in range(-(-n_blocks // BLOCKS_PER_PROMPT)):
        n = min(BLOCKS_PER_PROMPT, n_blocks - seed * BLOCKS_PER_PROMPT)
        results: list[WriteResult] = []
        blocks = tuple(BlockData(i, BLOCK, segments) for i in range(n))
        store.offer(WriteRequest(root, kv.tokens((seed, n * BLOCK)), blocks, "save", results.append))
        store.flush(120)
        assert results[0].outcome == "written", results
        if puncher is not None:
            puncher.punch()
    if puncher is not None:
        puncher.close()
    print("filled", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    main()
