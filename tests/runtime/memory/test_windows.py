"""Rows of windowed layers: which are needed, which go first when memory is short, and that they are gone."""

import mmap
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import PoolExhausted
from runtime.memory.arena import stride
from runtime.memory.layout import BLOCK, TILE, GroupLayout, MemoryLayout
from runtime.memory.pool import BlockPool
from runtime.memory.prefix import PrefixIndex
from runtime.memory.sequence import BlockSequence
from tests.runtime.memory.resident import own_bytes

FULL = GroupLayout("rows", "rows", TILE)
WINDOW = GroupLayout("window", "window", TILE, window=200)  # runs of two blocks
LAYOUT = MemoryLayout((FULL, WINDOW))
PAGE = mmap.PAGESIZE


def seen(group: GroupLayout, query: int) -> range:
    """The positions that a query sees: the attention kernels' masks."""
    if not group.window:
        return range(query + 1)
    if group.chunked:
        return range(query // group.window * group.window, query + 1)
    return range(max(0, query - group.window + 1), query + 1)


@pytest.mark.parametrize("window", [0, 1, 2, 16, 255, 256, 257, 512])
@pytest.mark.parametrize("chunked", [False, True])
def test_what_is_needed_to_go_on_is_what_the_queries_to_come_see(window: int, chunked: bool) -> None:
    group = GroupLayout("g", "g", TILE, window, chunked=chunked)
    for n in range(1100):
        needed = [p for q in (n, n + 1, n + window) for p in seen(group, q) if p < n]
        assert group.first(n) == min(needed, default=n)


@settings(max_examples=300, deadline=None)
@given(
    windows=st.lists(st.tuples(st.integers(1, 600), st.booleans()), min_size=1, max_size=2),
    there=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=2, max_size=2),
    limit=st.integers(0, 5 * BLOCK),
)
def test_the_farthest_place_to_resume_at_is_found(
    windows: list[tuple[int, bool]], there: list[list[bool]], limit: int
) -> None:
    groups = [GroupLayout(f"g{i}", "", TILE, w, chunked=chunked) for i, (w, chunked) in enumerate(windows)]

    def usable(n: int) -> bool:
        """The rows that the next query sees are there, and the block that it is appended to."""
        return all(
            there[g][p // BLOCK]
            for g, group in enumerate(groups)
            for p in {*(p for p in seen(group, n) if p < n), *([n] if n % BLOCK else [])}
        )

    found = MemoryLayout(tuple(groups)).resumable(limit, lambda g, i: there[g][i])
    assert found == max(n for n in range(limit + 1) if usable(n))


def grown(index: PrefixIndex, n_blocks: int, token: int = 0, private: bool = False) -> BlockSequence:
    sequence = BlockSequence(index, b"", 64 * BLOCK, private)
    extend(sequence, n_blocks, token)
    return sequence


def extend(sequence: BlockSequence, n_blocks: int, token: int = 0) -> None:
    for _ in range(n_blocks):
        sequence.reserve(BLOCK)
        sequence.commit(np.full(BLOCK, token, np.int32))


def there(pool: BlockPool, blocks: Sequence[int]) -> list[int]:
    return [i for i, block in enumerate(blocks) if pool.resident(1, block)]


def index_of(n_full: int, n_windows: int) -> PrefixIndex:
    """With memory for so many parts of blocks in the full group, and in the windowed one."""
    return PrefixIndex(BlockPool(LAYOUT, 64, (n_full + n_windows) * PAGE))


def test_without_pressure_every_row_stays() -> None:
    index = index_of(32, 32)
    sequence = grown(index, 32)
    assert there(index.pool, sequence.blocks) == list(range(32))
    assert sequence.truncatable(3 * BLOCK + 7) == 3 * BLOCK + 7


def test_under_pressure_runs_stay_that_are_evenly_spread_and_what_the_sequence_sees() -> None:
    index = index_of(32, 18)
    sequence = grown(index, 32)
    runs = [0, 2, 4, 6, 8, 10, 12, 14, 15]
    assert there(index.pool, sequence.blocks) == [i for run in runs for i in (2 * run, 2 * run + 1)]
    assert sequence.truncatable(9 * BLOCK + 100) == 9 * BLOCK + 100  # within run 4
    assert sequence.truncatable(7 * BLOCK + 100) == 6 * BLOCK  # run 3 is gone


def test_a_sequence_of_any_length_gets_on_with_little_more_than_its_window() -> None:
    index = index_of(40, 3)
    sequence = grown(index, 40)
    assert there(index.pool, sequence.blocks)[-2:] == [38, 39]
    assert len(there(index.pool, sequence.blocks)) == 3


def test_a_private_sequence_gives_back_what_it_does_not_see() -> None:
    index = index_of(12, 2)
    sequence = grown(index, 12, private=True)
    assert there(index.pool, sequence.blocks) == [10, 11]


def test_what_another_sequence_sees_stays() -> None:
    index = index_of(24, 5)
    first = grown(index, 4)
    twin = first.fork()
    extend(first, 16)
    assert there(index.pool, twin.blocks)[-1] == 3
    assert twin.can_truncate(4 * BLOCK)
    assert not twin.can_truncate(2 * BLOCK + 1)
    with pytest.raises(ValueError, match="cannot truncate"):
        twin.truncate(2 * BLOCK + 1)


def test_the_ends_of_prefixes_outlast_their_middles_and_go_with_them() -> None:
    index = index_of(18, 8)
    for token in range(3):
        grown(index, 5, token).clear()
    assert sum(index.pool.resident(1, node.block) for node in index.nodes()) < 15
    for token in range(3):
        match = index.match(b"", np.full(5 * BLOCK, token, np.int32))
        assert index.resumable(match, 5 * BLOCK) == 5 * BLOCK
    grown(index, 8, 3)  # the prefix that was unused the longest makes room
    assert index.match(b"", np.zeros(5 * BLOCK, np.int32)).n_tokens < 5 * BLOCK
    latest = index.match(b"", np.full(5 * BLOCK, 2, np.int32))
    assert index.resumable(latest, 5 * BLOCK) == 5 * BLOCK


def test_rows_that_are_lent_stay_until_they_come_back() -> None:
    index = index_of(12, 6)
    sequence = grown(index, 6)
    blocks = sequence.blocks
    lease, _ = sequence.lease(6 * BLOCK)
    extend(sequence, 3)
    assert there(index.pool, blocks) == list(range(6))
    with pytest.raises(PoolExhausted):
        extend(sequence, 6)
    lease.release()
    extend(sequence, 3)
    assert there(index.pool, blocks) != list(range(6))


def test_what_is_lent_of_windows_is_bounded() -> None:
    pool = BlockPool(LAYOUT, 64, 64 * PAGE)
    sequence = grown(PrefixIndex(pool), 8)
    withheld = pool.withheld(sequence.blocks, 8 * BLOCK, 3 * PAGE)
    lent = [i for i, block in enumerate(sequence.blocks) if (1, block) not in withheld]
    assert lent == [5, 6, 7]
    lease, _ = sequence.lease(8 * BLOCK, withheld)
    assert not any(pool.can_give_back(1, sequence.blocks[i]) for i in lent)
    assert pool.can_give_back(1, sequence.blocks[4])
    assert pool.withheld(sequence.blocks, 8 * BLOCK, 3 * PAGE) == withheld  # nothing more is lent
    other = grown(PrefixIndex(pool), 2)
    assert len(pool.withheld(other.blocks, 2 * BLOCK, 3 * PAGE)) == 2
    assert pool.withheld(other.blocks, 2 * BLOCK, 3 * PAGE, PAGE) == {(1, other.blocks[0])}
    lease.release()
    assert not pool.withheld(other.blocks, 2 * BLOCK, 3 * PAGE)


def test_of_two_blocks_with_the_same_tokens_the_fuller_one_stays() -> None:
    index = index_of(32, 32)
    sequence = grown(index, 3)
    for block in sequence.blocks[:2]:
        index.pool.give_back(1, block)
    tokens = np.zeros(3 * BLOCK, np.int32)
    assert index.resumable(index.match(b"", tokens), 2 * BLOCK + 1) == 0
    restored = BlockSequence(index, b"", 64 * BLOCK)
    bare, *whole = [index.allocate([1]), index.allocate(), index.allocate()]
    restored.graft(tokens, 0, [bare, *whole])
    match = index.match(b"", tokens)
    assert [node.block for node in match.nodes] == [sequence.blocks[0], whole[0], sequence.blocks[2]]
    assert restored.blocks == tuple(node.block for node in match.nodes)
    assert index.resumable(match, 2 * BLOCK + 1) == 2 * BLOCK + 1


def test_memory_of_free_blocks_goes_where_it_is_needed() -> None:
    pool = BlockPool(LAYOUT, 64, 8 * PAGE)
    whole = [pool.allocate() for _ in range(4)]
    pool.views(whole[0], BLOCK)[0][:] = 7
    for block in whole:
        pool.drop(block)
    assert (pool.used_bytes, pool.n_bytes) == (0, 8 * PAGE)
    bare = [pool.allocate([1]) for _ in range(8)]
    assert pool.used_bytes == pool.n_bytes == pool.total_bytes == 8 * PAGE
    assert not any(view.any() for block in bare for view in pool.views(block, BLOCK))
    with pytest.raises(PoolExhausted, match="bytes of the memory pool are in use"):
        pool.allocate([1])


@pytest.mark.parametrize("tile_bytes", [1 << 16, 1 << 18, (1 << 18) + 4096, 5 << 18])
def test_rows_that_go_leave_the_process(tile_bytes: int) -> None:
    group = GroupLayout("window", "window", tile_bytes, window=16)
    pool = BlockPool(MemoryLayout((FULL, group)), 32)
    blocks = [pool.allocate() for _ in range(8)]
    for block in blocks:
        pool.views(block, BLOCK)[1][:] = 1
    before = own_bytes()
    for block in blocks[::2]:
        assert pool.give_back(1, block) == stride(group)
        assert not pool.views(block, BLOCK)[1].size
    assert abs(before - own_bytes() - 4 * group.block_bytes) < group.block_bytes
    assert all(pool.views(block, BLOCK)[1].all() for block in blocks[1::2])


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_sequence_stays_known_whose_block_was_replaced_in_the_index_and_then_left_it(goes_on: bool) -> None:
    """Another one's block has rows of windows that its own has no more, and goes when memory is short."""
    index = index_of(8, 8)
    sequence = grown(index, 2)
    sequence.reserve(200)
    sequence.commit(np.zeros(200, np.int32))
    index.pool.give_back(1, sequence.blocks[1])  # nothing that is seen at 712
    other = grown(index, 2)
    assert [node.block for node in index.nodes()] == list(other.blocks) != list(sequence.blocks[:2])
    other.clear()
    assert index.evict()
    if goes_on:
        extend(sequence, 1)
    sequence.publish_tail()
    assert index.match(b"", sequence.tokens).n_tokens == sequence.n_tokens
