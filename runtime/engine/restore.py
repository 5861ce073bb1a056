"""Prefixes on their way into a slot: from the block pool at once, from the store through the memory port."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.engine.messages import CacheSource, Tokens
from runtime.engine.port import BlockViews, LoadDone, LookupDone, MemoryPort
from runtime.engine.resume import CacheReason, Candidate, Resume, resume_point
from runtime.engine.slot import Slot
from runtime.errors import PoolExhausted
from runtime.memory.layout import BLOCK
from runtime.memory.prefix import PrefixIndex, common_prefix
from runtime.memory.sequence import BlockSequence


@dataclass(frozen=True, slots=True)
class Restored:
    """The slot remembers the first `n_tokens` of the wanted tokens; `reason` says why not more."""

    n_tokens: int
    source: CacheSource
    reason: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Restore at most `limit` of `tokens`. `keep`: leave the slot as it is unless a token can be restored."""

    root: bytes
    tokens: Tokens
    limit: int
    private: bool = False
    keep: bool = False


@dataclass(slots=True)
class _Pending:
    slot: Slot
    wanted: Wanted
    sequence: BlockSequence
    ram: Resume
    deadline: float
    n_asked: int = 0
    destinations: list[int] = field(default_factory=list)


class Restorer:
    """Never waits and never fails: what the store cannot give in time is evaluated again.

    A ticket that was given up keeps its destination blocks until the port answers, because the port may still
    write to them. As long as one is past its deadline the port is not asked again.
    """

    def __init__(
        self,
        index: PrefixIndex,
        port: MemoryPort | None,
        allocate: Callable[[], int],
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._index = index
        self._port = port
        self._allocate = allocate
        self._seconds = seconds
        self._clock = clock
        self._tickets = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._orphans: dict[int, _Pending] = {}

    def begin(self, slot: Slot, wanted: Wanted) -> Restored | None:
        """Take what RAM has; None means that the store was asked and `answered` or `expired` will tell."""
        ram = self._from_ram(slot, wanted)
        sequence = slot.sequence
        if not ram.n:
            sequence = BlockSequence(self._index, wanted.root, slot.sequence.capacity, wanted.private)
            if not wanted.keep:
                slot.sequence.clear()
                slot.sequence = sequence
        if self._port is None or ram.n >= wanted.limit:
            return Restored(ram.n, ram.source, ram.explain())
        if any(orphan.deadline <= self._clock() for orphan in self._orphans.values()):
            return _too_slow(ram)
        ticket = next(self._tickets)
        self._pending[ticket] = _Pending(slot, wanted, sequence, ram, self._clock() + self._seconds)
        self._port.lookup(ticket, wanted.root, wanted.tokens, ram.n)
        return None

    def answered(self, message: LookupDone | LoadDone) -> tuple[Slot, Restored] | None:
        """Take an answer of the port; returns the slot whose restore it ended."""
        pending = self._pending.get(message.ticket)
        if pending is None:
            self._settle(message)
            return None
        if isinstance(message, LoadDone):
            del self._pending[message.ticket]
            return pending.slot, self._loaded(pending, message)
        if pending.n_asked:
            return None
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

    def _from_ram(self, slot: Slot, wanted: Wanted) -> Resume:
        """Find the longest prefix in the slot itself or in the index and make it the slot's sequence."""
        own = slot.sequence
        n_own = common_prefix(own.tokens, wanted.tokens) if own.root == wanted.root else 0
        match = self._index.match(wanted.root, wanted.tokens)
        n_found = match.n_tokens
        ram = resume_point(
            wanted.limit + 1,
            (
                Candidate(own.n_tokens if own.root == wanted.root else 0, n_own, CacheSource.RAM),
                Candidate(n_found + match.diverges, n_found, CacheSource.RAM, evicted=match.evicted),
            ),
        )
        if ram.candidate == 0:
            own.truncate(ram.n)
            own.private = wanted.private
            own.publish()
        elif ram.candidate == 1:
            found = BlockSequence(self._index, wanted.root, own.capacity, wanted.private)
            found.adopt(match.cut(ram.n), wanted.tokens)
            own.clear()
            slot.sequence = found
        return ram

    def _found(self, ticket: int, pending: _Pending, message: LookupDone) -> Restored | None:
        wanted, ram = pending.wanted, pending.ram
        n_asked = min(message.n_tokens, wanted.limit)
        if n_asked <= ram.n:
            return Restored(ram.n, ram.source, _with_store(ram, message.reason))
        first = ram.n // BLOCK
        pool = self._index.pool
        try:
            while (first + len(pending.destinations)) * BLOCK < n_asked:
                pending.destinations.append(self._allocate())
        except PoolExhausted:
            n_asked = (first + len(pending.destinations)) * BLOCK
            if n_asked <= ram.n:
                self._drop(pending.destinations)
                return Restored(ram.n, ram.source, CacheReason.POOL_FULL.explain(ram.n))
        pending.n_asked = n_asked
        views = []
        for i, block in enumerate(pending.destinations, first):
            n_rows = min(BLOCK, n_asked - i * BLOCK)
            views.append(BlockViews(i, n_rows, pool.views(block, n_rows)))
        assert self._port is not None
        self._port.load(ticket, wanted.root, wanted.tokens, n_asked, tuple(views))
        return None

    def _loaded(self, pending: _Pending, message: LoadDone) -> Restored:
        wanted, ram = pending.wanted, pending.ram
        n = min(message.n_tokens, pending.n_asked)
        if n <= ram.n:
            self._drop(pending.destinations)
            return Restored(ram.n, ram.source, _with_store(ram, message.reason))
        first = ram.n // BLOCK
        n_blocks = -(-n // BLOCK) - first
        self._drop(pending.destinations[n_blocks:])
        pending.sequence.graft(wanted.tokens[:n], first, pending.destinations[:n_blocks])
        if pending.slot.sequence is not pending.sequence:
            pending.slot.sequence.clear()
            pending.slot.sequence = pending.sequence
        whole = n == wanted.limit < len(wanted.tokens)
        reason = CacheReason.IDENTICAL if whole else CacheReason.STORE_SHORT
        text = reason.explain(n)
        if message.reason and n < wanted.limit:
            text = f"{text}; store: {message.reason}"
        return Restored(n, CacheSource.STORE, text)

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
