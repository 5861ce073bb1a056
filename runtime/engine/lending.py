"""Prefixes lent to the store."""

from collections.abc import Callable

from runtime.engine.port import BlockViews, PrefixSnapshot
from runtime.errors import PoolExhausted
from runtime.memory.layout import BLOCK, TILE
from runtime.memory.pool import BlockPool
from runtime.memory.sequence import BlockSequence

ClearRows = Callable[[tuple[int, ...], int, int], None]
"""`runtime.runner.Runner.clear_rows`"""


def lend(
    pool: BlockPool,
    sequence: BlockSequence,
    n_tokens: int,
    why: str,
    returned: Callable[[], None],
    clear_rows: ClearRows,
) -> PrefixSnapshot:
    """Freeze the first `n_tokens` tokens: whole blocks, or all tokens of the sequence.

    A tile that they fill in part is lent with nothing else in it. Where there is no block to make it so, it
    is not lent at all, and the snapshot has up to 15 tokens less. Errors: PoolExhausted if that leaves none.
    `returned` is called on the borrower's thread after the release.
    """
    n_tokens = _seal(pool, sequence, n_tokens, clear_rows)
    lease, rows = sequence.lease(n_tokens)

    def release() -> None:
        lease.release()
        returned()

    return PrefixSnapshot(
        root=sequence.root,
        tokens=sequence.tokens[:n_tokens].copy(),
        blocks=tuple(BlockViews(i, n, pool.views(block, n)) for i, (block, n) in enumerate(rows)),
        why=why,
        release=release,
    )


def _seal(pool: BlockPool, sequence: BlockSequence, n_tokens: int, clear_rows: ClearRows) -> int:
    """Empty the last tile's rows after `n_tokens`; returns how many tokens can be lent.

    They may hold what a conversation that parted from this one went on with, or what a step that was given
    up left half written.
    """
    if not n_tokens % TILE:
        return n_tokens
    assert n_tokens == sequence.n_tokens
    row = n_tokens % BLOCK
    if pool.leased(sequence.blocks[n_tokens // BLOCK]) == row:
        return n_tokens  # sealed by the loan that stands
    try:
        block = sequence.own_tail()
    except PoolExhausted:
        if n_tokens < TILE:
            raise
        return n_tokens // TILE * TILE
    clear_rows(pool.addresses(block), row, -(-row // TILE) * TILE)
    return n_tokens
