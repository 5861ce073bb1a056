"""Blocks are given out, counted, frozen and freed."""

import threading

import numpy as np
import pytest

from runtime.errors import PoolExhausted
from runtime.memory.layout import GroupLayout, MemoryLayout
from runtime.memory.pool import BlockPool
from tests.runtime.memory.resident import own_bytes

LAYOUT = MemoryLayout((GroupLayout("a", "a", 16 * 3), GroupLayout("b", "b", 16 * 5)))


def test_a_block_is_aligned_in_every_group_and_views_show_its_memory() -> None:
    pool = BlockPool(LAYOUT, 3)
    blocks = [pool.allocate() for _ in range(3)]
    for block in blocks:
        for address, view in zip(pool.addresses(block), pool.views(block, 256), strict=True):
            assert address % 64 == 0
            assert view.ctypes.data == address
            view[:] = block + 1
    for block in blocks:
        assert all((view == block + 1).all() for view in pool.views(block, 256))
    assert [len(view) for view in pool.views(blocks[0], 17)] == [2 * 16 * 3, 2 * 16 * 5]


def test_an_exhausted_pool_says_so_and_a_freed_block_comes_back_zeroed() -> None:
    pool = BlockPool(LAYOUT, 2)
    first, _ = pool.allocate(), pool.allocate()
    with pytest.raises(PoolExhausted, match="all 2 blocks"):
        pool.allocate()
    pool.views(first, 256)[0][:] = 7
    pool.drop(first)
    again = pool.allocate()
    assert again == first
    assert not pool.views(again, 256)[0].any()


def test_memory_is_touched_only_when_it_is_used() -> None:
    layout = MemoryLayout((GroupLayout("big", "big", 16 << 20),))
    before = own_bytes()
    pool = BlockPool(layout, 256)
    block = pool.allocate()
    pool.views(block, 1)[0][:10] = 1
    assert own_bytes() - before < 64 << 20


def test_clearing_what_was_never_used_takes_no_memory() -> None:
    layout = MemoryLayout((GroupLayout("big", "big", 16 << 20),))
    pool = BlockPool(layout, 4)
    before = own_bytes()
    block = pool.allocate()
    assert own_bytes() - before < 1 << 20
    pool.views(block, 256)[0][-1] = 3
    pool.clear_behind(block, 240)
    assert not pool.views(block, 256)[0].any()


def test_a_prefix_that_comes_back_gets_its_blocks_in_their_order() -> None:
    pool = BlockPool(LAYOUT, 8)
    blocks = [pool.allocate() for _ in range(4)]
    lease = pool.lease(tuple((block, 256) for block in blocks))
    for block in blocks:
        pool.drop(block)
    lease.release()
    assert [pool.allocate() for _ in range(4)] == blocks


def test_rows_are_copied_as_whole_tiles() -> None:
    pool = BlockPool(LAYOUT, 2)
    source, target = pool.allocate(), pool.allocate()
    for view in pool.views(source, 256):
        view[:] = np.arange(len(view)) % 251 + 1
    pool.copy_rows(source, target, 20)
    for old, new in zip(pool.views(source, 256), pool.views(target, 256), strict=True):
        n = len(old) // 8
        assert (new[:n] == old[:n]).all()
        assert not new[n:].any()


def test_a_leased_block_is_freed_when_the_lease_returns_from_another_thread() -> None:
    pool = BlockPool(LAYOUT, 1)
    block = pool.allocate()
    lease = pool.lease(((block, 256),))
    pool.drop(block)
    assert pool.n_used == 1
    with pytest.raises(PoolExhausted):
        pool.allocate()
    thread = threading.Thread(target=lease.release)
    thread.start()
    thread.join()
    assert pool.allocate() == block


def test_a_lease_that_is_released_twice_counts_once() -> None:
    pool = BlockPool(LAYOUT, 1)
    block = pool.allocate()
    first, second = pool.lease(((block, 10),)), pool.lease(((block, 10),))
    first.release()
    first.release()
    assert pool.leased(block)
    second.release()
    assert not pool.leased(block)
    assert pool.n_leases == 0


@pytest.mark.parametrize(
    ("leased", "row", "may"),
    [(10, 10, False), (10, 15, False), (10, 16, True), (32, 32, True), (32, 31, False)],
)
def test_rows_in_the_tile_of_a_lent_row_are_not_written_in_place(leased: int, row: int, may: bool) -> None:
    pool = BlockPool(LAYOUT, 1)
    block = pool.allocate()
    lease = pool.lease(((block, leased),))
    assert pool.appendable(block, row) is may
    lease.release()
    assert pool.appendable(block, row)


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(LAYOUT, 0)
