"""How much memory sequences take, and what a budget affords."""

from dataclasses import dataclass

from runtime.memory.arena import stride
from runtime.memory.layout import BLOCK, MemoryLayout

# Blocks of a model without keys and values take no memory but for their tokens.
_MOST_BLOCKS_BEYOND = 1 << 16


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Of a `BlockPool`; `spare_bytes` are those beyond what its sequences need."""

    n_blocks: int
    max_bytes: int
    spare_bytes: int


def window_bytes(layout: MemoryLayout) -> int:
    """Memory of what going on at any place sees in groups with a window."""
    return sum(group.run_blocks * stride(group) for group in layout.groups if group.window)


def sequence_bytes(layout: MemoryLayout, n_ctx: int, n_ubatch: int) -> int:
    """Memory with which a sequence of up to `n_ctx` tokens always gets on, in steps of up to `n_ubatch`.

    Of groups with a window that is the window and the step, and the window once more, as it may just be lent.
    """
    n_blocks = _blocks(n_ctx)
    n_bytes = 0
    for group in layout.groups:
        n = group.run_blocks + _blocks(group.window + n_ubatch) if group.window else n_blocks
        n_bytes += min(n, n_blocks) * stride(group)
    return n_bytes


def affordable_context(layout: MemoryLayout, n_ubatch: int, n_bytes: int, at_most: int) -> int:
    """The longest context, whole blocks but for `at_most`, whose `sequence_bytes` are at most `n_bytes`.

    0 where not even a block fits.
    """
    if sequence_bytes(layout, at_most, n_ubatch) <= n_bytes:
        return at_most
    low, high = 0, -(-at_most // BLOCK)
    while high - low > 1:
        middle = (low + high) // 2
        fits = sequence_bytes(layout, middle * BLOCK, n_ubatch) <= n_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low * BLOCK


def pool_size(layout: MemoryLayout, n_sequences: int, n_ctx: int, n_ubatch: int, budget: int) -> PoolSize:
    """A pool for so many sequences, and for what `budget` bytes afford beyond them."""
    needed, n_blocks = n_sequences * sequence_bytes(layout, n_ctx, n_ubatch), n_sequences * _blocks(n_ctx)
    max_bytes = max(needed, budget)
    lasting = [group for group in layout.groups if not group.window] or layout.groups
    affordable = max_bytes // max(1, sum(map(stride, lasting)))
    n_blocks = max(n_blocks, min(affordable, n_blocks + _MOST_BLOCKS_BEYOND))
    return PoolSize(n_blocks, max_bytes, max_bytes - needed)


def _blocks(n_tokens: int) -> int:
    """Blocks of that many consecutive positions wherever they begin, one of which may be copied."""
    return -(-n_tokens // BLOCK) + 1
