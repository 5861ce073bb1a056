"""Prefixes on their way into a slot: from the block pool at once, from the store through the memory port."""

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from runtime.engine.candidates import Logits
from runtime.engine.lending import view
from runtime.engine.messages import CacheSource, Tokens
from runtime.engine.port import BlockViews, LoadDone, LookupDone, MemoryPort, PointViews, StoredPoint
from runtime.engine.resume import CacheReason, Candidate, Resume, resume_point
from runtime.engine.slot import Slot
from runtime.errors import PoolExhausted
from runtime.memory.layout import BLOCK
from runtime.memory.points import Point
from runtime.memory.prefix import PrefixIndex, common_prefix
from runtime.memory.sequence import BlockSequence


@dataclass(frozen=True, slots=True)
class Restored:
    """The slot remembers the first `n_tokens` of the wanted tokens; `reason` says why not more.

    `logits` are those after the last token, if that was more than the limit and nothing is left to evaluate.
    """

    n_tokens: int
    source: CacheSource
    reason: str
    logits: Logits | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Restore at most `limit` of `tokens`, or all of them with the logits after them.

    `keep`: leave the slot as it is unless a token can be restored.
    """

    root: bytes
    tokens: Tokens
    limit: int
    private: bool = False
    keep: bool = False

    def usable(self, n_tokens: int, has_logits: bool) -> bool:
        """Is it something to go on from, as far as its length matters?"""
        return n_tokens <= self.limit or (has_logits and n_tokens == len(self.tokens))

    def usable_point(self, point: Point) -> bool:
        return self.usable(point.n_tokens, point.logits is not None)


@dataclass(frozen=True, slots=True)
class _Way:
    """A prefix in RAM, and how it becomes the slot's sequence; `point` is where it is taken up, if at one."""

    candidate: Candidate
    take_up: Callable[[int], BlockSequence]
    point: Point | None = None


@dataclass(slots=True)
class _Pending:
    slot: Slot
    wanted: Wanted
    sequence: BlockSequence
    ram: Resume
    deadline: float
    n_asked: int = 0
    destinations: list[int] = field(default_factory=list)
    points: list[StoredPoint] = field(default_factory=list)
    point: Point | None = None
    trouble: str = ""


class Restorer:
    """Never waits and never fails: what the store cannot give in time is evaluated again.

    A ticket that was given up keeps its destination blocks until the port answers, because the port may still
    write to them. As long as one is past its deadline the port is not asked again.
    """

    def __init__(
        self,
        index: PrefixIndex,
        port: MemoryPort | None,
        allocate: Callable[[Collection[int]], int],
        seconds: float,
        clock: Callable[[], float],
        n_vocab: int,
    ) -> None:
        self._index = index
        self._port = port
        self._allocate = allocate
        self._seconds = seconds
        self._clock = clock
        self._n_vocab = n_vocab
        self._tickets = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._orphans: dict[int, _Pending] = {}

    def begin(self, slot: Slot, wanted: Wanted) -> Restored | None:
        """Take what RAM has; None means that the store was asked and `answered` or `expired` will tell."""
        ram, logits = self._from_ram(slot, wanted)
        sequence = slot.sequence
        if not ram.n:
            sequence = BlockSequence(self._index, wanted.root, slot.sequence.capacity, wanted.private)
            if not wanted.keep:
                slot.sequence.clear()
                slot.sequence = sequence
        if self._port is None or ram.n >= wanted.limit:
            return Restored(ram.n, ram.source, ram.explain(), logits)
        if any(orphan.deadline <= self._clock() for orphan in self._orphans.values()):
            return _too_slow(ram)
        ticket = next(self._tickets)
        self._pending[ticket] = _Pending(slot, wanted, sequence, ram, self._clock() + self._seconds)
        # Only points go beyond the limit.
        self._look_up(
            ticket, self._pending[ticket], len(wanted.tokens) if sequence.has_tail else wanted.limit
        )
        return None

    def answered(self, message: LookupDone | LoadDone) -> tuple[Slot, Restored] | None:
        """Take an answer of the port; returns the slot whose restore it ended."""
        pending = self._pending.get(message.ticket)
        if pending is None:
            self._settle(message)
            return None
        if isinstance(message, LoadDone):
            restored = self._loaded(message.ticket, pending, message)
        elif pending.n_asked:
            return None
        else:
            restored = self._found(message.ticket, pending, message)
        if restored is None:
            return None
        del self._pending[message.ticket]
        return pending.slot, restored

    def expired(self) -> list[tuple[Slot, Restored]]:
        """Give up the restores whose deadline has passed."""
        now = self._clock()
        late = [ticket for ticket, pending in self._pending.items() if pending.deadline <= now]
        return [self._give_up(ticket) for ticket in late]

    def abandon(self, slot: Slot) -> None:
        """The slot's request was cancelled."""
        for ticket, pending in list(self._pending.items()):
            if pending.slot is slot:
                self._give_up(ticket)

    def next_deadline(self) -> float | None:
        return min((pending.deadline for pending in self._pending.values()), default=None)

    def _from_ram(self, slot: Slot, wanted: Wanted) -> tuple[Resume, Logits | None]:
        """Find the longest prefix in the slot itself or in the index and make it the slot's sequence."""
        own = slot.sequence
        ways = (*self._own_ways(own, wanted), self._indexed_way(own, wanted))
        ram = resume_point(wanted.limit + 1, [way.candidate for way in ways])
        if ram.candidate is None:
            return ram, None
        way = ways[ram.candidate]
        slot.sequence = way.take_up(ram.n)
        return ram, _logits(way.point, wanted)

    def _own_ways(self, own: BlockSequence, wanted: Wanted) -> tuple[_Way, ...]:
        """The slot's sequence as far back as it can go exactly, and at a point that only it may have."""
        same = own.root == wanted.root
        n_own = common_prefix(own.tokens, wanted.tokens) if same else 0
        known = (own.n_tokens if same else 0, n_own)
        back = own.truncatable(min(n_own, wanted.limit)) if same else 0

        def go_on() -> BlockSequence:
            own.private = wanted.private
            own.publish()
            return own

        def truncate(n_tokens: int) -> BlockSequence:
            own.truncate(n_tokens)
            return go_on()

        if not own.has_tail:
            return (_Way(_up_to(back, known, wanted), truncate),)
        usable = (
            p
            for p in own.own_points
            if p.n_tokens <= n_own and wanted.usable_point(p) and own.has_windows(p.n_tokens)
        )
        point = max(usable, key=lambda p: p.n_tokens, default=None)

        def return_to_point(_: int) -> BlockSequence:
            assert point is not None
            own.return_to(point)
            return go_on()

        here = Candidate(*known, CacheSource.RAM, back)
        return _Way(here, truncate), _Way(_at(point, known), return_to_point, point)

    def _indexed_way(self, own: BlockSequence, wanted: Wanted) -> _Way:
        """What the index has of the prefix, in place of the slot's own sequence."""
        match, point = self._index.match(wanted.root, wanted.tokens), None
        known = (match.n_tokens + match.diverges, match.n_tokens)
        if own.has_tail:
            found = self._index.match_point(wanted.root, wanted.tokens, wanted.usable_point)
            candidate = _at(found[1] if found is not None else None, known, match.evicted)
            match, point = found if found is not None else (match, None)
        else:
            n = self._index.resumable(match, wanted.limit)
            candidate = _up_to(n, known, wanted, match.evicted)

        def adopt(n_tokens: int) -> BlockSequence:
            own.clear()
            sequence = BlockSequence(self._index, wanted.root, own.capacity, wanted.private)
            sequence.adopt(match.cut(n_tokens), wanted.tokens, point)
            return sequence

        return _Way(candidate, adopt, point)

    def _look_up(self, ticket: int, pending: _Pending, n_tokens: int) -> None:
        """Ask what the store has of the first `n_tokens`: where they end decides which rows that takes."""
        assert self._port is not None
        wanted = pending.wanted
        self._port.lookup(ticket, wanted.root, wanted.tokens[:n_tokens], pending.ram.n)

    def _found(self, ticket: int, pending: _Pending, message: LookupDone) -> Restored | None:
        wanted, ram = pending.wanted, pending.ram
        if pending.sequence.has_tail:
            pending.points = [
                p for p in message.points if p.n_tokens > ram.n and wanted.usable(p.n_tokens, p.has_logits)
            ]
            return self._ask_for_point(ticket, pending, message.reason)
        n_asked = min(message.n_tokens, wanted.limit)
        if n_asked <= ram.n:
            self._drop(pending.destinations)
            return Restored(ram.n, ram.source, _with_store(ram, pending.trouble or message.reason))
        n_asked = self._make_room(pending, n_asked)
        if n_asked <= ram.n:
            self._drop(pending.destinations)
            return Restored(ram.n, ram.source, CacheReason.POOL_FULL.explain(ram.n))
        self._ask(ticket, pending, n_asked)
        return None

    def _ask_for_point(self, ticket: int, pending: _Pending, reason: str) -> Restored | None:
        """Ask for the next of the store's points; with none left, `reason` says why the last one failed."""
        tails = self._index.pool.tails
        assert tails is not None
        pending.points.sort(key=lambda point: point.n_tokens)
        while pending.points:
            stored = pending.points.pop()
            if self._make_room(pending, stored.n_tokens) >= stored.n_tokens:
                n_logits = self._n_vocab if stored.has_logits else 0
                pending.point = tails.blank_point(stored.n_tokens, n_logits)
                self._ask(ticket, pending, stored.n_tokens, view(pending.point))
                return None
            reason = CacheReason.POOL_FULL.explain(pending.ram.n)
        self._drop(pending.destinations)
        return Restored(pending.ram.n, pending.ram.source, _with_store(pending.ram, reason))

    def _make_room(self, pending: _Pending, n_tokens: int) -> int:
        """Have destinations for `n_tokens`, or for as many as there is room for; returns for how many.

        Rows of windows have one only where going on from there needs them.
        """
        layout = self._index.pool.layout
        first = pending.ram.n // BLOCK
        while True:
            self._drop(pending.destinations)
            pending.destinations = []
            try:
                for i in range(first, -(-n_tokens // BLOCK)):
                    unseen = [g for g in layout.windowed if i < layout.groups[g].first_block(n_tokens)]
                    pending.destinations.append(self._allocate(unseen))
            except PoolExhausted:
                n_tokens = (first + len(pending.destinations)) * BLOCK
            else:
                return n_tokens

    def _ask(self, ticket: int, pending: _Pending, n_asked: int, point: PointViews | None = None) -> None:
        pending.n_asked = n_asked
        views = []
        for i, block in enumerate(pending.destinations, pending.ram.n // BLOCK):
            n_rows = min(BLOCK, n_asked - i * BLOCK)
            views.append(BlockViews(i, n_rows, self._index.pool.views(block, n_rows)))
        wanted = pending.wanted
        assert self._port is not None
        self._port.load(ticket, wanted.root, wanted.tokens, n_asked, tuple(views), point)

    def _loaded(self, ticket: int, pending: _Pending, message: LoadDone) -> Restored | None:
        wanted, ram, point = pending.wanted, pending.ram, pending.point
        n_loaded = min(message.n_tokens, pending.n_asked)
        n = self._resumable(pending, n_loaded)
        if point is not None and message.n_tokens != point.n_tokens:
            return self._ask_for_point(ticket, pending, message.reason)
        if n < n_loaded and n_loaded > ram.n:
            # What came is whole, but to end there takes other rows of windows than were asked for.
            pending.n_asked, pending.trouble = 0, message.reason
            self._look_up(ticket, pending, n_loaded)
            return None
        if n <= ram.n:
            self._drop(pending.destinations)
            return Restored(ram.n, ram.source, _with_store(ram, message.reason))
        first = ram.n // BLOCK
        n_blocks = -(-n // BLOCK) - first
        self._drop(pending.destinations[n_blocks:])
        if point is not None:
            point.offered = True
        if n_blocks:
            self._index.pool.clear_behind(
                pending.destinations[n_blocks - 1], n - (first + n_blocks - 1) * BLOCK
            )
        pending.sequence.graft(wanted.tokens[:n], first, pending.destinations[:n_blocks], point)
        if pending.slot.sequence is not pending.sequence:
            pending.slot.sequence.clear()
            pending.slot.sequence = pending.sequence
        reason = _store_reason(n, wanted, pending.trouble or message.reason)
        return Restored(n, CacheSource.STORE, reason, _logits(point, wanted))

    def _resumable(self, pending: _Pending, limit: int) -> int:
        """How many tokens, at most `limit` of those that were loaded, the rows of windows suffice for."""
        before = pending.sequence.blocks[: pending.ram.n // BLOCK]
        return self._index.pool.resumable((*before, *pending.destinations), limit)

    def _give_up(self, ticket: int) -> tuple[Slot, Restored]:
        pending = self._orphans[ticket] = self._pending.pop(ticket)
        return pending.slot, _too_slow(pending.ram)

    def _settle(self, message: LookupDone | LoadDone) -> None:
        """The answer of a ticket nobody waits for: now its destinations are nobody's."""
        orphan = self._orphans.get(message.ticket)
        if orphan is None or (orphan.n_asked and isinstance(message, LookupDone)):
            return
        del self._orphans[message.ticket]
        self._drop(orphan.destinations)

    def _drop(self, blocks: list[int]) -> None:
        for block in blocks:
            self._index.pool.drop(block)


def _too_slow(ram: Resume) -> Restored:
    return Restored(ram.n, ram.source, _with_store(ram, CacheReason.STORE_SLOW.explain(ram.n)))


def _with_store(ram: Resume, reason: str) -> str:
    return f"{ram.explain()}; store: {reason}" if reason else ram.explain()


def _at(point: Point | None, known: tuple[int, int], evicted: bool = False) -> Candidate:
    """A candidate that can be taken up at the point alone, if there is one."""
    n, has_logits = (0, False) if point is None else (point.n_tokens, point.logits is not None)
    return Candidate(*known, CacheSource.RAM, n, has_logits, evicted)


def _up_to(n: int, known: tuple[int, int], wanted: Wanted, evicted: bool = False) -> Candidate:
    """A candidate that can be taken up anywhere but for its rows of windows: at `n` at the latest."""
    gone = n < min(known[1], wanted.limit)
    return Candidate(*known, CacheSource.RAM, n, evicted=evicted, window_gone=gone)


def _logits(point: Point | None, wanted: Wanted) -> Logits | None:
    return point.logits if point is not None and point.n_tokens > wanted.limit else None


def _store_reason(n: int, wanted: Wanted, trouble: str) -> str:
    if n > wanted.limit:
        return CacheReason.ANSWERED.explain(n)
    reason = CacheReason.IDENTICAL if n == wanted.limit < len(wanted.tokens) else CacheReason.STORE_SHORT
    text = reason.explain(n)
    return f"{text}; store: {trouble}" if trouble and n < wanted.limit else text
