"""The block pool: one arena per cache group, and who relies on which block."""

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

from runtime.errors import PoolExhausted
from runtime.memory.buffers import reserve
from runtime.memory.layout import MemoryLayout
from runtime.memory.points import TailPool
from runtime.memory.tail import aligned


class Lease:
    """Rows of blocks that must not change until `release`, which any thread may call, more than once."""

    __slots__ = ("_returned", "rows")

    def __init__(self, rows: tuple[tuple[int, int], ...], returned: "deque[Lease]") -> None:
        self.rows = rows
        self._returned = returned

    def release(self) -> None:
        self._returned.append(self)


class BlockPool:
    """`n_blocks` logical blocks of 256 positions over all cache groups of `layout`.

    A block is referenced in three ways, counted apart because they protect different things:

    holders   sequences that have the block in their table; one of them may append rows to it
    indexed   leading rows that the prefix index vouches for (0: not in the index)
    leased    leading rows lent to another thread; bytes of whole units must stand still

    A block is free when nothing refers to it. What is behind a block's rows is zero, so that stale rows of
    one conversation never reach another's attention or the store. Memory is touched only when used. All
    methods belong to one thread; only `Lease.release` may come from another.
    """

    def __init__(self, layout: MemoryLayout, n_blocks: int) -> None:
        if n_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {n_blocks}")
        self.layout = layout
        self.n_blocks = n_blocks
        self.tails = TailPool(layout.tail) if layout.tail is not None else None
        # Of the group whose units are the largest: who lends a part of one has it stand still as a whole.
        self.unit = max((group.unit for group in layout.groups), default=1)
        self._arenas = [_Arena(g.block_bytes, n_blocks) for g in layout.groups]
        self._holders = [0] * n_blocks
        self._indexed = [0] * n_blocks
        self._leases = [0] * n_blocks
        self._leased = [0] * n_blocks
        self._fresh = 0
        self._free: list[int] = []
        self._returned: deque[Lease] = deque()
        _POOLS.add(self)

    @property
    def n_used(self) -> int:
        return self._fresh - len(self._free)

    @property
    def n_leases(self) -> int:
        """Block leases that were not given back yet."""
        self._collect()
        return sum(self._leases)

    def allocate(self, cleared: bool = True) -> int:
        """A block with one holder; `PoolExhausted` when none is free.

        Unless `cleared` its bytes may be anything: whoever fills it calls `clear_behind` before it is used.
        """
        if not self._free:
            self._collect()
        if self._free:
            block = self._free.pop()
            if cleared:
                self.clear_behind(block, 0)
        elif self._fresh < self.n_blocks:
            block = self._fresh
            self._fresh += 1
        else:
            raise PoolExhausted(f"all {self.n_blocks} blocks of the memory pool are in use")
        self._holders[block] = 1
        return block

    def clear_behind(self, block: int, n_rows: int) -> None:
        """Zero all units after those that hold the first `n_rows` rows."""
        for arena, group in zip(self._arenas, self.layout.groups, strict=True):
            arena.view(block, arena.block_bytes)[group.segment_bytes(n_rows) :].fill(0)

    def hold(self, block: int) -> None:
        self._holders[block] += 1

    def drop(self, block: int) -> None:
        self._holders[block] -= 1
        self._free_if_unused(block)

    def index_rows(self, block: int, n_rows: int) -> None:
        """The prefix index vouches for the first `n_rows` rows; 0 takes the block out of it."""
        self._indexed[block] = n_rows
        self._free_if_unused(block)

    def lease(self, rows: tuple[tuple[int, int], ...]) -> Lease:
        """Freeze ``(block, n_rows)`` pairs until the lease is released."""
        for block, n_rows in rows:
            self._leases[block] += 1
            self._leased[block] = max(self._leased[block], n_rows)
        return Lease(rows, self._returned)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def leased(self, block: int) -> int:
        """How many of its leading rows are lent; 0 for none."""
        self._collect()
        return self._leased[block]

    def evictable(self, block: int) -> bool:
        """Only the index refers to it."""
        if self._returned:
            self._collect()
        return not self._holders[block] and not self._leases[block]

    def appendable(self, block: int, row: int) -> bool:
        """May the one holder write rows from `row` on in place?"""
        if self._returned:
            self._collect()
        frozen = max(self._indexed[block], self.sealed(self._leased[block]))
        return self._holders[block] == 1 and row >= frozen

    def sealed(self, n_rows: int) -> int:
        """The end of the unit, of whichever group, that the last of `n_rows` positions stands in."""
        return -(-n_rows // self.unit) * self.unit

    def addresses(self, block: int) -> tuple[int, ...]:
        """The block's address in each cache group."""
        return tuple(arena.address + block * arena.stride for arena in self._arenas)

    def views(self, block: int, n_rows: int) -> tuple[npt.NDArray[np.uint8], ...]:
        """Bytes of each cache group that hold the first `n_rows` rows, as writable views."""
        groups = self.layout.groups
        return tuple(
            a.view(block, g.segment_bytes(n_rows)) for a, g in zip(self._arenas, groups, strict=True)
        )

    def copy_rows(self, source: int, destination: int, n_rows: int) -> None:
        """Copy the whole units that hold the first `n_rows` rows."""
        for old, new in zip(self.views(source, n_rows), self.views(destination, n_rows), strict=True):
            new[:] = old

    def _collect(self) -> None:
        while self._returned:
            lease = self._returned.popleft()
            rows, lease.rows = lease.rows, ()
            for block, _ in rows:
                self._leases[block] -= 1
                if not self._leases[block]:
                    self._leased[block] = 0
                    self._free_if_unused(block)

    def _free_if_unused(self, block: int) -> None:
        if not (self._holders[block] or self._indexed[block] or self._leases[block]):
            self._free.append(block)

    def in_use(self, group: int, address: int) -> bool:
        """Is it the address, in that cache group, of a block that something refers to?"""
        arena = self._arenas[group]
        block, rest = divmod(address - arena.address, arena.stride)
        return (
            not rest
            and 0 <= block < self.n_blocks
            and bool(self._holders[block] or self._indexed[block] or self._leases[block])
        )


_POOLS: "weakref.WeakSet[BlockPool]" = weakref.WeakSet()


def in_use(layout: MemoryLayout, group: int, address: int) -> bool:
    """`BlockPool.in_use` of any pool of that layout in the process: what checked mode asks."""
    return any(pool.layout == layout and pool.in_use(group, address) for pool in list(_POOLS))


class _Arena:
    """Address space for the blocks of one cache group, backed by memory as it is touched."""

    def __init__(self, block_bytes: int, n_blocks: int) -> None:
        self.block_bytes = block_bytes
        self.stride = aligned(block_bytes)
        _, self._bytes = reserve(self.stride * n_blocks)
        self.address = int(self._bytes.ctypes.data)

    def view(self, block: int, n_bytes: int) -> npt.NDArray[np.uint8]:
        start = block * self.stride
        return self._bytes[start : start + n_bytes]
