"""Prefixes lent to the store."""

from collections.abc import Callable

from runtime.engine.port import BlockViews, PrefixSnapshot
from runtime.memory.pool import BlockPool
from runtime.memory.sequence import BlockSequence


def lend(
    pool: BlockPool, sequence: BlockSequence, n_tokens: int, why: str, returned: Callable[[], None]
) -> PrefixSnapshot:
    """Freeze the first `n_tokens` tokens; `returned` is called on the borrower's thread after the release."""
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
