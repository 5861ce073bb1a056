"""How a model's sequence memory is laid out in bytes.

Unit     positions   what it is
tile     16          for every layer of a cache group in order, every kv head in order: keys
                     ``[Dk][16]`` then values ``[16][Dv]``, in the cache types of the group
block    256         16 consecutive tiles; the unit of sharing, storing and eviction

A block's first ``ceil(r / 16)`` tiles are exactly its first ``r`` positions, so a partial block is a
contiguous prefix and a stored segment *is* the memory's bytes, on every ISA.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runtime.memory.tail import TailLayout

BLOCK = 256
TILE = 16


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """One cache group: layers of one kind, row size and window.

    `layout_id` names cache types, order and sizes; equal ids mean interchangeable bytes.
    `tile_bytes` are the bytes of a unit of all layers of the group. A unit is a tile of 16 positions, or what
    `unit` says where rows stand for more positions than one: a group with a row for every 128 positions has
    that unit. Of a unit that is filled in part, bytes that no position has decided yet are zero.
    `window` is the number of positions a query can see, 0 for all: the last ones with its own, or, `chunked`,
    those from the last multiple of `window` on.
    """

    name: str
    layout_id: str
    tile_bytes: int
    window: int = 0
    unit: int = TILE
    chunked: bool = False

    @property
    def block_bytes(self) -> int:
        return BLOCK // self.unit * self.tile_bytes

    def segment_bytes(self, n_rows: int) -> int:
        """Bytes that hold the first `n_rows` positions of a block."""
        return -(-n_rows // self.unit) * self.tile_bytes

    def first(self, n_tokens: int) -> int:
        """Of the first `n_tokens` positions, those from this one on are seen by whoever goes on there."""
        if not self.window:
            return 0
        if self.chunked:
            return n_tokens // self.window * self.window
        return max(0, n_tokens + 1 - self.window)

    def first_block(self, n_tokens: int) -> int:
        """The first block needed to go on at `n_tokens`: of rows that are seen or that are still to come."""
        return self.first(n_tokens) // BLOCK

    @property
    def run_blocks(self) -> int:
        """So many consecutive blocks cover the window of at least a whole block of positions."""
        return -(-self.window // BLOCK) + 1


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """All cache groups of a model, in the order of the plan's block tables, and its tail.

    With a `tail` a sequence can be resumed only where a point was captured, else anywhere.
    """

    groups: tuple[GroupLayout, ...]
    tail: TailLayout | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all groups."""
        return sum(g.block_bytes for g in self.groups)

    @property
    def windowed(self) -> tuple[int, ...]:
        """The groups whose queries see a window."""
        return tuple(g for g, group in enumerate(self.groups) if group.window)

    def resumable(self, limit: int, has: Callable[[int, int], bool]) -> int:
        """The most tokens, at most `limit`, at which a sequence can go on as far as windows are concerned.

        ``has(g, i)``: its block i has the rows of group g.
        """
        n_tokens, seen = limit, False
        while n_tokens and not seen:
            seen = True
            for g in self.windowed:
                needed = range(self.groups[g].first_block(n_tokens), -(-n_tokens // BLOCK))
                gap = next((i for i in reversed(needed) if not has(g, i)), None)
                if gap is not None:
                    n_tokens, seen = gap * BLOCK, False
        return n_tokens
