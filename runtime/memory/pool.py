"""The block pool: one arena per cache group, who relies on which block, and what memory blocks take."""

import weakref
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from runtime.errors import PoolExhausted
from runtime.memory.arena import Arena
from runtime.memory.layout import BLOCK, MemoryLayout
from runtime.memory.points import TailPool

Rows = tuple[tuple[int, int], ...]
"""Blocks, each with a number of leading rows."""

Part = tuple[int, int]
"""A block's rows of one group: ``(group, block)``."""


class Lease:
    """Rows of blocks that must not change until `release`, which any thread may call, more than once.

    Of groups with a window it holds those `parts` only.
    """

    __slots__ = ("_returned", "parts", "rows")

    def __init__(self, rows: Rows, parts: frozenset[Part], returned: "deque[Lease]") -> None:
        self.rows = rows
        self.parts = parts
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
    one conversation never reach another's attention or the store. Memory is touched only when used.

    A block's part in a group with a window can be given back while the block lives: such rows are there no
    more, and nobody may read, write or lend them. All parts together take at most `max_bytes` of memory
    (None: what `n_blocks` take), free blocks included until their memory is wanted elsewhere. `tail_bytes` is
    `TailPool`'s `max_bytes`.

    All methods belong to one thread; only `Lease.release` may come from another.
    """

    def __init__(
        self,
        layout: MemoryLayout,
        n_blocks: int,
        max_bytes: int | None = None,
        tail_bytes: int | None = None,
    ) -> None:
        if n_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {n_blocks}")
        self.layout = layout
        self.n_blocks = n_blocks
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self.tails = TailPool(layout.tail, tail_bytes) if layout.tail is not None else None
        # Of the group whose units are the largest: who lends a part of one has it stand still as a whole.
        self.unit = max((group.unit for group in layout.groups), default=1)
        self._arenas = [Arena(group, n_blocks) for group in layout.groups]
        self._resident = [bytearray(n_blocks) for _ in layout.groups]
        self._part_leases: dict[Part, int] = {}
        self._holders = [0] * n_blocks
        self._indexed = [0] * n_blocks
        self._leases = [0] * n_blocks
        self._leased = [0] * n_blocks
        self._fresh = 0
        self._free: list[int] = []
        self._free_bytes = 0
        self._returned: deque[Lease] = deque()
        _POOLS.add(self)

    @property
    def n_used(self) -> int:
        return self._fresh - len(self._free)

    @property
    def used_bytes(self) -> int:
        """Memory of the parts that are there of blocks in use."""
        return self.n_bytes - self._free_bytes

    @property
    def total_bytes(self) -> int:
        """Memory that blocks may take at most."""
        whole = self.n_blocks * sum(arena.stride for arena in self._arenas)
        return whole if self.max_bytes is None else min(whole, self.max_bytes)

    @property
    def n_leases(self) -> int:
        """Block leases that were not given back yet."""
        self._collect()
        return sum(self._leases)

    def allocate(self, without: Collection[int] = (), cleared: bool = True) -> int:
        """A block with one holder, `without` its parts in some of the groups with a window.

        Unless `cleared` its bytes may be anything: whoever fills it calls `clear_behind` before it is used.
        Errors: PoolExhausted when no block is free, or no memory for it.
        """
        if not self._free or self.shortage(without):
            self._collect()
        if not self.has_free_block or self.shortage(without):
            raise self.exhausted()
        block = self._take()
        for g in without:
            self._give_back(g, block)
        if cleared:
            self.clear_behind(block, 0)
        self._make_room(self._missing(block, without))
        for g, arena in enumerate(self._arenas):
            if g not in without and not self._resident[g][block]:
                self._resident[g][block] = True
                self.n_bytes += arena.stride
        self._holders[block] = 1
        return block

    def clear_behind(self, block: int, n_rows: int) -> None:
        """Zero all units after those that hold the first `n_rows` rows.

        Memory that was never used is zero, and to be read needs no page.
        """
        for view, group in zip(self.views(block, BLOCK), self.layout.groups, strict=True):
            rest = view[group.segment_bytes(n_rows) :]
            if rest.view(np.bool_).any():
                rest.fill(0)

    @property
    def has_free_block(self) -> bool:
        return bool(self._free) or self._fresh < self.n_blocks

    def shortage(self, without: Collection[int] = (), n_blocks: int = 1) -> int:
        """How many bytes must be given back before so many blocks can be allocated."""
        if self.max_bytes is None:
            return 0
        wanted = sum(arena.stride for g, arena in enumerate(self._arenas) if g not in without)
        return max(0, self.used_bytes + n_blocks * wanted - self.max_bytes)

    def exhausted(self) -> PoolExhausted:
        """The error that says what there is not enough of."""
        if self.max_bytes is None or not self.has_free_block:
            return PoolExhausted(f"all {self.n_blocks} blocks of the memory pool are in use")
        return PoolExhausted(f"all {self.max_bytes:,} bytes of the memory pool are in use")

    def resident(self, group: int, block: int) -> bool:
        """Are the rows of the block in that group there?"""
        return bool(self._resident[group][block])

    def lacking(self, block: int) -> frozenset[int]:
        """The groups in which the block has no rows."""
        return frozenset(g for g in self.layout.windowed if not self._resident[g][block])

    def resumable(self, blocks: Sequence[int], limit: int) -> int:
        """`MemoryLayout.resumable` of a sequence over `blocks`."""
        return self.layout.resumable(limit, lambda g, i: self.resident(g, blocks[i]))

    def can_give_back(self, group: int, block: int) -> bool:
        """Is it a part of a window that is there and that nobody was lent?"""
        if self._returned:
            self._collect()
        return self.resident(group, block) and (group, block) not in self._part_leases

    def give_back(self, group: int, block: int) -> int:
        """Let the rows of a part go for which `can_give_back` holds; returns its bytes."""
        assert self.layout.groups[group].window and self.can_give_back(group, block)
        self._give_back(group, block)
        return self._arenas[group].stride

    def hold(self, block: int) -> None:
        self._holders[block] += 1

    def drop(self, block: int) -> None:
        self._holders[block] -= 1
        self._free_if_unused(block)

    def index_rows(self, block: int, n_rows: int) -> None:
        """The prefix index vouches for the first `n_rows` rows; 0 takes the block out of it."""
        self._indexed[block] = n_rows
        self._free_if_unused(block)

    def lease(self, rows: Rows, withheld: Collection[Part] = ()) -> Lease:
        """Freeze rows until the lease is released, except `withheld` parts of windows (group, block)."""
        parts = frozenset(
            (g, block)
            for block, _ in rows
            for g in self.layout.windowed
            if self.resident(g, block) and (g, block) not in withheld
        )
        for block, n_rows in rows:
            self._leases[block] += 1
            self._leased[block] = max(self._leased[block], n_rows)
        for part in parts:
            self._part_leases[part] = self._part_leases.get(part, 0) + 1
        return Lease(rows, parts, self._returned)

    def withheld(
        self, blocks: Sequence[int], n_tokens: int, n_bytes: int | None, end_bytes: int = 0
    ) -> set[Part]:
        """Which parts of a sequence's blocks not to lend, so that no more than `n_bytes` of windows are lent.

        For what going on at `n_tokens` needs there are `end_bytes` more. What is lent already costs nothing
        more, and the last blocks come first.
        """
        if n_bytes is None or not self.layout.windowed:
            return set()
        self._collect()
        out = set()
        n_lent = sum(self._arenas[g].stride for g, _ in self._part_leases)
        for i in range(len(blocks) - 1, -1, -1):
            for g in self.layout.windowed:
                part, size = (g, blocks[i]), self._arenas[g].stride
                if part in self._part_leases or not self.resident(*part):
                    continue
                needed = i >= self.layout.groups[g].first_block(n_tokens)
                if n_lent + size <= n_bytes + needed * end_bytes:
                    n_lent += size
                else:
                    out.add(part)
        return out

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

    def views(
        self, block: int, n_rows: int, withheld: Collection[Part] = ()
    ) -> tuple[npt.NDArray[np.uint8], ...]:
        """Bytes of each cache group that hold the first `n_rows` rows, as writable views.

        Those of a part that is not there, or `withheld`, are none.
        """
        return tuple(
            arena.view(
                block,
                group.segment_bytes(n_rows) if self.resident(g, block) and (g, block) not in withheld else 0,
            )
            for g, (arena, group) in enumerate(zip(self._arenas, self.layout.groups, strict=True))
        )

    def copy_rows(self, source: int, destination: int, n_rows: int) -> None:
        """Copy the whole units that hold the first `n_rows` rows, of parts that are there."""
        for old, new in zip(self.views(source, n_rows), self.views(destination, n_rows), strict=True):
            new[: len(old)] = old

    def _collect(self) -> None:
        while self._returned:
            lease = self._returned.popleft()
            rows, parts = lease.rows, lease.parts
            lease.rows, lease.parts = (), frozenset()
            for part in parts:
                self._part_leases[part] -= 1
                if not self._part_leases[part]:
                    del self._part_leases[part]
            # The last to be free is used first: a prefix that comes back finds its pages in its order.
            for block, _ in reversed(rows):
                self._leases[block] -= 1
                if not self._leases[block]:
                    self._leased[block] = 0
                    self._free_if_unused(block)

    def _free_if_unused(self, block: int) -> None:
        if not (self._holders[block] or self._indexed[block] or self._leases[block]):
            self._free.append(block)
            self._free_bytes += self._bytes_of(block)

    def _take(self) -> int:
        """A free block, with whatever is left in it."""
        if not self._free:
            self._fresh += 1
            return self._fresh - 1
        block = self._free.pop()
        self._free_bytes -= self._bytes_of(block)
        return block

    def _bytes_of(self, block: int) -> int:
        return sum(a.stride for a, there in zip(self._arenas, self._resident, strict=True) if there[block])

    def _missing(self, block: int, without: Collection[int]) -> int:
        return sum(
            arena.stride
            for g, arena in enumerate(self._arenas)
            if g not in without and not self._resident[g][block]
        )

    def _make_room(self, n_bytes: int) -> None:
        """Give back what free blocks have, until there is room for `n_bytes`."""
        for block in self._free:
            for g, arena in enumerate(self._arenas):
                if self.max_bytes is None or self.n_bytes + n_bytes <= self.max_bytes:
                    return
                if self._resident[g][block]:
                    self._free_bytes -= arena.stride
                    self._give_back(g, block)

    def _give_back(self, group: int, block: int) -> None:
        if self._resident[group][block]:
            self._arenas[group].give_back(block)
            self._resident[group][block] = False
            self.n_bytes -= self._arenas[group].stride

    def in_use(self, group: int, address: int) -> bool:
        """Is it the address, in that cache group, of rows that are there and that something refers to?"""
        arena = self._arenas[group]
        block, rest = divmod(address - arena.address, arena.stride)
        return (
            not rest
            and 0 <= block < self.n_blocks
            and self.resident(group, block)
            and bool(self._holders[block] or self._indexed[block] or self._leases[block])
        )


_POOLS: "weakref.WeakSet[BlockPool]" = weakref.WeakSet()


def in_use(layout: MemoryLayout, group: int, address: int) -> bool:
    """`BlockPool.in_use` of any pool of that layout in the process: what checked mode asks."""
    return any(pool.layout == layout and pool.in_use(group, address) for pool in list(_POOLS))
