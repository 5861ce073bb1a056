"""Long conversations and many of them: look-ups stay quick."""

import time
from pathlib import Path

import numpy as np
import pytest

from store import BlockData, Segment, Store, WriteRequest, WriteResult
from tests.store import kv

TINY = np.zeros(16, np.uint8)


def write_tiny(store: Store, root: bytes, prompt: kv.Tokens) -> None:
    """A prompt whose blocks have 16 bytes each: only the tables grow."""
    blocks = tuple(
        BlockData(start // 256, min(256, len(prompt) - start), (Segment("g", "l", 16, TINY),))
        for start in range(0, len(prompt), 256)
    )
    results: list[WriteResult] = []
    store.offer(WriteRequest(root, prompt, blocks, "save", results.append))
    assert store.flush(120)
    assert results[0].outcome == "written", results


def best_lookup(store: Store, root: bytes, prompt: kv.Tokens, expected: int) -> float:
    best = 1.0
    for _ in range(7):
        started = time.thread_time()
        assert store.lookup(root, prompt).n_tokens == expected
        best = min(best, time.thread_time() - started)
    return best


def test_a_look_up_of_131072_tokens_takes_milliseconds(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 131_072))
    write_tiny(store, root, prompt)
    assert best_lookup(store, root, prompt, len(prompt)) < 0.04


@pytest.mark.parametrize("shared", [0, 120, 200])
def test_a_thousand_prompts_that_part_in_one_block_do_not_slow_look_ups(
    store: Store, root: bytes, shared: int
) -> None:
    """All are children of one node, sharing no, the first, or the first two runs of its sorted keys."""
    stem = kv.tokens((1, shared))
    for seed in range(100, 1100):
        rest = kv.tokens((seed, 256 - shared))
        prompt = np.concatenate([stem, rest]).astype(np.int32)
        blocks = (BlockData(0, 256, (Segment("g", "l", 16, TINY),)),)
        store.offer(WriteRequest(root, prompt, blocks, "save", lambda result: None))
    assert store.flush(120)
    assert store.statistics().n_blocks == 1000
    known = np.concatenate([stem, kv.tokens((600, 256 - shared))[:40], kv.tokens((9, 300))]).astype(np.int32)
    assert best_lookup(store, root, known, shared + 40) < 0.01


@pytest.mark.slow
def test_twenty_conversations_of_64k_tokens_among_a_thousand_prefixes(tmp_path: Path) -> None:
    """Taking turns, they are found within 10 ms, and nothing grows in memory."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(1000, 2000):
            write_tiny(store, root, kv.tokens((1, 100), (seed, 500)))
        prompts = [kv.tokens((seed, 65_536)) for seed in range(20)]
        for prompt in prompts:
            write_tiny(store, root, prompt)
        before = resident()
        seconds = []
        for _ in range(10):
            for prompt in prompts:
                started = time.perf_counter()
                assert store.lookup(root, prompt).n_tokens == 65_536
                seconds.append(time.perf_counter() - started)
        assert sorted(seconds)[len(seconds) // 2] < 0.01
        assert resident() - before < 32 << 20
