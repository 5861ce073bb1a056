"""The index finds exact prefixes fast, whatever lies beside them."""

import time

import numpy as np

from runtime.memory.layout import BLOCK, TILE, GroupLayout, MemoryLayout
from runtime.memory.pool import BlockPool
from runtime.memory.prefix import PrefixIndex, common_prefix
from runtime.memory.sequence import BlockSequence

LAYOUT = MemoryLayout((GroupLayout("rows", "rows", TILE),))


def remember(index: PrefixIndex, tokens: np.ndarray, root: bytes = b"") -> None:
    sequence = BlockSequence(index, root, len(tokens))
    sequence.reserve(len(tokens))
    sequence.commit(tokens)
    sequence.publish_tail()
    sequence.clear()


def test_common_prefix() -> None:
    a = np.array([1, 2, 3], np.int32)
    assert [common_prefix(a, np.array(b, np.int32)) for b in ([], [1], [1, 2, 3, 4], [1, 9, 3], [2])] == [
        0,
        1,
        3,
        1,
        0,
    ]


def test_a_longer_tail_supersedes_the_shorter_ones_and_a_shorter_one_adds_nothing() -> None:
    index = PrefixIndex(BlockPool(LAYOUT, 8))
    tokens = np.arange(300, dtype=np.int32)
    for n in (270, 290, 280, 300):
        remember(index, tokens[:n])
    assert len(index) == 2
    assert index.pool.n_used == 2
    assert index.match(b"", tokens).n_tokens == 300


def test_a_match_tells_divergence_from_the_end_of_what_is_known() -> None:
    index = PrefixIndex(BlockPool(LAYOUT, 8))
    tokens = np.arange(600, dtype=np.int32)
    remember(index, tokens)
    branch = tokens.copy()
    for n in (10, 256, 400, 512):
        branch[n:] = 7777
        match = index.match(b"", branch)
        assert (match.n_tokens, match.diverges) == (n, True)
        branch[:] = tokens
    longer = np.concatenate((tokens, tokens))
    assert index.match(b"", longer).n_tokens == 600
    assert not index.match(b"", longer).diverges
    assert not index.match(b"", tokens[:300]).diverges


def test_an_eviction_is_remembered_where_it_shortened_the_prefix() -> None:
    index = PrefixIndex(BlockPool(LAYOUT, 8))
    tokens = np.arange(768, dtype=np.int32)
    remember(index, tokens)
    assert not index.match(b"", tokens).evicted
    index.evict()
    match = index.match(b"", tokens)
    assert (match.n_tokens, match.evicted) == (512, True)
    assert not index.match(b"", np.concatenate((tokens[:512], tokens[:256]))).evicted


def test_the_longest_unused_prefix_goes_first() -> None:
    index = PrefixIndex(BlockPool(LAYOUT, 4))
    old, new = np.arange(512, dtype=np.int32), np.arange(1000, 1512, dtype=np.int32)
    remember(index, old)
    remember(index, new)
    index.match(b"", old)
    remember(index, np.arange(2000, 2256, dtype=np.int32))
    assert index.match(b"", old).n_tokens == 512
    assert index.match(b"", new).n_tokens == 256


def test_empty_roots_do_not_pile_up() -> None:
    index = PrefixIndex(BlockPool(LAYOUT, 4))
    for i in range(500):
        remember(index, np.arange(300, dtype=np.int32), root=str(i).encode())
    assert len(index._roots) <= 70


def test_a_thousand_siblings_and_a_deep_conversation_are_searched_in_under_ten_milliseconds() -> None:
    index = PrefixIndex(BlockPool(LAYOUT, 1600))
    rng = np.random.default_rng(0)
    for _ in range(1000):
        remember(index, rng.integers(0, 50_000, BLOCK).astype(np.int32))
    long = rng.integers(0, 50_000, 65_536).astype(np.int32)
    remember(index, long)
    seconds = []
    for _ in range(10):
        begun = time.thread_time()
        assert index.match(b"", long).n_tokens == len(long)
        seconds.append(time.thread_time() - begun)
    assert min(seconds) < 0.01
