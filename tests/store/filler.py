"""Child of test_opening: fills a store, says so, and waits to be killed."""

import sys
import time
from pathlib import Path

import numpy as np

from store import BLOCK, BlockData, Segment, Store, WriteRequest, WriteResult
from tests.store import kv

N_SEGMENTS, BLOCKS_PER_PROMPT = 6, 16


def main() -> None:
    folder, n_blocks, block_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = Store.open(folder, budget_bytes=64 << 30, min_free_bytes=0)
    root = store.register(kv.FINGERPRINT)
    data = np.random.default_rng(0).integers(0, 255, max(16, block_bytes // N_SEGMENTS), dtype=np.uint8)
    segments = tuple(Segment(f"g{i}", "filler/1", data.size, data) for i in range(N_SEGMENTS))
    for seed in range(-(-n_blocks // BLOCKS_PER_PROMPT)):
        n = min(BLOCKS_PER_PROMPT, n_blocks - seed * BLOCKS_PER_PROMPT)
        results: list[WriteResult] = []
        blocks = tuple(BlockData(i, BLOCK, segments) for i in range(n))
        store.offer(WriteRequest(root, kv.tokens((seed, n * BLOCK)), blocks, "save", results.append))
        store.flush(60)
        assert results[0].outcome == "written", results
    print("filled", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    main()
