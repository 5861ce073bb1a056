"""Prefixes lent to the store."""

import sys
from collections.abc import Callable, Iterable, Sequence

from runtime.engine.config import EngineConfig
from runtime.engine.port import BlockViews, MemoryPort, PointViews, PrefixSnapshot
from runtime.engine.slot import Slot
from runtime.errors import PoolExhausted
from runtime.memory.layout import BLOCK, TILE
from runtime.memory.points import Point
from runtime.memory.pool import BlockPool
from runtime.memory.sequence import BlockSequence
from runtime.memory.sizing import window_bytes

ClearRows = Callable[[tuple[int, ...], int, int], None]
"""`runtime.runner.Runner.clear_rows`"""


class Lender:
    """Lends what slots remember: to the store as a request goes on, and to whoever saves a slot.

    `returned` is called on a borrower's thread when a loan comes back.
    """

    def __init__(
        self,
        pool: BlockPool,
        port: MemoryPort | None,
        config: EngineConfig,
        returned: Callable[[], None],
        clear_rows: ClearRows,
    ) -> None:
        self._pool = pool
        self._port = port
        self._config = config
        self._returned = returned
        self._clear_rows = clear_rows

    def offer(self, slot: Slot, n_tokens: int, why: str) -> None:
        """Lend a prefix to the store, unless the request or its length speaks against it."""
        too_few = n_tokens < max(TILE, self._pool.unit, self._config.offer_min_tokens)
        slot.owes_end = False
        if self._port is None or too_few or slot.sequence.private:
            return
        points = [p for p in slot.sequence.points() if not p.offered and p.n_tokens <= n_tokens]
        snapshot = self._lend(slot, n_tokens, why, points)
        slot.owes_end = why == "release" and not is_whole(self._pool, snapshot)
        for point in points:
            point.offered = point.n_tokens <= len(snapshot.tokens)
        self._port.offer(snapshot)

    def offer_again(self, slots: Iterable[Slot]) -> None:
        """What could not be lent of windows at an answer's end is lent when the store gives others back."""
        spare, ends = self._config.lent_bytes, self._end_bytes("release")
        for slot in slots:
            if slot.idle and slot.owes_end and can_lend_end(self._pool, slot.sequence, spare, ends):
                self.offer(slot, slot.sequence.n_tokens, "release")
                # Once: what comes back of this very loan must not start the next.
                slot.owes_end = False

    def recall(self) -> bool:
        """Ask the store to give back what it does not have to have; is what it keeps still being written?"""
        return self._port is not None and self._port.recall()

    def save(self, slot: Slot) -> PrefixSnapshot:
        """All that the slot remembers, with every point and one at its end. Errors: PoolExhausted."""
        sequence = slot.sequence
        points = sequence.points()
        if sequence.has_tail and sequence.point_here() is None:
            points.append(sequence.snapshot())
        return self._lend(slot, sequence.n_tokens, "save", points)

    def _lend(self, slot: Slot, n_tokens: int, why: str, points: Sequence[Point]) -> PrefixSnapshot:
        spare, ends = self._config.lent_bytes, self._end_bytes(why)
        return lend(
            self._pool, slot.sequence, n_tokens, why, self._returned, self._clear_rows, points, spare, ends
        )

    def _end_bytes(self, why: str) -> int:
        """How much of windows may be lent beyond what is spare: no answer shall wait until it comes back.

        There is room for the ends of prompts and answers; a save is worth a wait.
        """
        if why == "interval":
            return 0
        return sys.maxsize if why == "save" else self._config.n_slots * window_bytes(self._pool.layout)


def lend(
    pool: BlockPool,
    sequence: BlockSequence,
    n_tokens: int,
    why: str,
    returned: Callable[[], None],
    clear_rows: ClearRows,
    points: Sequence[Point] = (),
    window_bytes: int | None = None,
    end_bytes: int = 0,
) -> PrefixSnapshot:
    """Freeze the first `n_tokens` tokens, whole blocks or all tokens of the sequence, and those of `points`.

    Rows of windows that are gone are not lent, nor more of them than `window_bytes` over all loans; for those
    that the end sees there are `end_bytes` more.
    A unit that they fill in part is lent with nothing else in it. Where there is no block to make it so, it
    is not lent at all, and the snapshot has that many tokens less. Errors: PoolExhausted if that leaves none.
    `returned` is called on the borrower's thread after the release.
    """
    n_tokens = _seal(pool, sequence, n_tokens, clear_rows)
    blocks = sequence.blocks[: -(-n_tokens // BLOCK)]
    withheld = pool.withheld(blocks, n_tokens, window_bytes, end_bytes)
    lease, rows = sequence.lease(n_tokens, withheld)
    lent = [point for point in points if point.n_tokens <= n_tokens]

    def lost() -> None:
        for point in lent:
            point.offered = False

    def release() -> None:
        lent.clear()
        lease.release()
        returned()

    return PrefixSnapshot(
        root=sequence.root,
        tokens=sequence.tokens[:n_tokens].copy(),
        blocks=tuple(BlockViews(i, n, pool.views(block, n, withheld)) for i, (block, n) in enumerate(rows)),
        why=why,
        release=release,
        points=tuple(view(point) for point in lent),
        lost=lost,
    )


def is_whole(pool: BlockPool, snapshot: PrefixSnapshot) -> bool:
    """Can its end be resumed at with the rows of windows that were lent?"""
    n = len(snapshot.tokens)
    return pool.layout.resumable(n, lambda g, i: snapshot.blocks[i].segments[g].size > 0) == n


def can_lend_end(pool: BlockPool, sequence: BlockSequence, window_bytes: int | None, end_bytes: int) -> bool:
    """Could all be lent that the end of the sequence sees?"""
    n, blocks = sequence.n_tokens, sequence.blocks
    withheld = pool.withheld(blocks, n, window_bytes, end_bytes)
    return pool.layout.resumable(n, lambda g, i: (g, blocks[i]) not in withheld) == n


def view(point: Point) -> PointViews:
    """What a point's bytes are, for as long as the point is kept."""
    return PointViews(point.n_tokens, point.parts, point.logits)


def _seal(pool: BlockPool, sequence: BlockSequence, n_tokens: int, clear_rows: ClearRows) -> int:
    """Empty the last unit's rows after `n_tokens`; returns how many tokens can be lent.

    They may hold what a conversation that parted from this one went on with, or what a step that was given
    up left half written.
    """
    end = pool.sealed(n_tokens)
    if end == n_tokens:
        return n_tokens
    assert n_tokens == sequence.n_tokens
    row = n_tokens % BLOCK
    if pool.leased(sequence.blocks[n_tokens // BLOCK]) == row:
        return n_tokens  # sealed by the loan that stands
    try:
        block = sequence.own_tail()
    except PoolExhausted:
        if n_tokens < pool.unit:
            raise
        return end - pool.unit
    clear_rows(pool.addresses(block), row, row + end - n_tokens)
    return n_tokens
