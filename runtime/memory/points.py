"""Points, and the memory of tails: states, rings and what is captured of them."""

import weakref
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from runtime.memory.buffers import Buffer, Buffers, Kept
from runtime.memory.tail import TailAddresses, TailLayout

Bytes = npt.NDArray[np.uint8]
Logits = npt.NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Point:
    """A tail as of exactly `n_tokens`; nothing of it changes any more.

    `rings`, in `memory`, are the rows of each for positions [first(n_tokens), n_tokens). `logits` f32
    [n_vocab] are those after the last token, where they are known. `offered`: the store has been lent it.
    `n_nodes` nodes of the prefix index carry it: more than one where prefixes part after it, in a block.
    """

    n_tokens: int
    state: Buffer | None
    memory: Buffer | None
    rings: tuple[Bytes, ...]
    logits: Logits | None = None
    offered: bool = False
    n_nodes: int = 0

    @property
    def parts(self) -> tuple[Bytes, ...]:
        """The bytes of each of `TailLayout.parts(n_tokens)`."""
        state = () if self.state is None else (self.state.bytes,)
        return (*state, *(ring for ring in self.rings if ring.size))

    @property
    def n_bytes(self) -> int:
        n_logits = 0 if self.logits is None else self.logits.nbytes
        return sum(part.nbytes for part in self.parts) + n_logits


class TailPool:
    """The memory of all tails of a model's sequences. Belongs to one thread.

    States are replaced and never changed, so whoever refers to one keeps it: a sequence, a point, a loan.
    Memory that nobody refers to any more is kept as far as all together stays within `max_bytes` (None: any).
    """

    def __init__(self, layout: TailLayout, max_bytes: int | None = None) -> None:
        self.layout = layout
        self.ring_offsets = layout.ring_offsets
        kept = Kept(max_bytes)
        self._states = Buffers(layout.state_bytes, kept)
        self._rings = Buffers(self.ring_offsets[-1], kept)
        self._captures = Buffers(layout.most_captured_bytes, kept)
        self.zero = self._states.take()
        _POOLS.add(self)

    @property
    def n_states(self) -> int:
        """States that somebody refers to, without the one of zeros."""
        return self._states.n_used - 1

    @property
    def n_rings(self) -> int:
        return self._rings.n_used

    def state(self) -> Buffer:
        """One to be written as a whole."""
        return self._states.take()

    def rings(self) -> Buffer:
        """The rings of one sequence. What another has left in them is never read: rows are written first."""
        return self._rings.take()

    def prepare(self) -> bool:
        """Get a slice of the memory for the next point, and for the state after it; False: it is all there.

        Else the capture and the step after it would wait for pages, several times as long as for the copy.
        """
        states = (self._states,) if self.layout.state is not None else ()
        captures = (self._captures,) if self.layout.rings else ()
        return any(buffers.prepare() for buffers in (*states, *captures))

    def blank_point(self, n_tokens: int, n_logits: int = 0) -> Point:
        """A point whose bytes, and `n_logits` logits, are still to be filled in."""
        state = self.state() if self.layout.state is not None else None
        logits = np.empty(n_logits, np.float32) if n_logits else None
        return Point(n_tokens, state, *self.captured_rings(n_tokens), logits)

    def captured_rings(self, n_tokens: int) -> tuple[Buffer | None, tuple[Bytes, ...]]:
        """Memory for what a point has of each ring, still to be filled in."""
        ends = list(accumulate(ring.captured_bytes(n_tokens) for ring in self.layout.rings))
        if not ends:
            return None, ()
        memory = self._captures.take(ends[-1])
        return memory, tuple(memory.bytes[a:b] for a, b in pairwise((0, *ends)))

    def in_use(self, tail: TailAddresses) -> bool:
        """Do all addresses that the layout needs lead into memory that somebody refers to?"""
        states = (tail.before, tail.after) if self.layout.state is not None else ()
        rings = (tail.rings,) if self.layout.rings else ()
        return (
            all(map(self._states.in_use, states))
            and all(map(self._rings.in_use, rings))
            and not (states and tail.after in (tail.before, self.zero.address))
        )


_POOLS: "weakref.WeakSet[TailPool]" = weakref.WeakSet()


def in_use(layout: TailLayout, tail: TailAddresses) -> bool:
    """`TailPool.in_use` of any pool of that layout in the process: what checked mode asks."""
    return any(pool.layout == layout and pool.in_use(tail) for pool in list(_POOLS))


class Tail:
    """The tail of one sequence while it grows.

    A step goes ``reserve(end)`` → the model reads and writes at `addresses` → ``commit(start)``. A step that
    was not committed leaves nothing that is ever read.
    """

    def __init__(self, pool: TailPool) -> None:
        self._pool = pool
        self._layout = pool.layout
        # None: of no tokens, all zero
        self._state: Buffer | None = None
        self._spare: Buffer | None = None
        self._previous: Buffer | None = None
        self._n_previous = -1
        self._rings: Buffer | None = None
        # Ring rows are those of positions from that of the point that was loaded on, and below the highest
        # position that any step was allowed to write.
        self._loaded = 0
        self._highest = 0

    @property
    def n_previous(self) -> int:
        """Of how many tokens the state before the last step is, while it is there; -1: it is not."""
        return self._n_previous

    @property
    def addresses(self) -> TailAddresses:
        before = self._pool.zero if self._state is None else self._state
        after, rings = self._spare, self._rings
        return TailAddresses(
            before.address,
            after.address if after is not None else 0,
            rings.address if rings is not None else 0,
        )

    def reserve(self, end: int) -> None:
        """Make room for a step that writes positions below `end`."""
        if self._layout.state is not None and self._spare is None:
            # Unless a point refers to it, the state before the last step becomes the one after the next.
            self._previous, self._n_previous = None, -1
            self._spare = self._pool.state()
        if self._layout.rings and self._rings is None:
            self._rings = self._pool.rings()
        self._highest = max(self._highest, end)

    def commit(self, start: int) -> None:
        """The step from `start` on is computed."""
        self._previous, self._n_previous = self._state, start
        self._state, self._spare = self._spare, None

    def can_return(self, n_tokens: int) -> bool:
        """Is what going on from an earlier `n_tokens` needs still there, to the last bit?"""
        if not n_tokens:
            return True
        if self._layout.state is not None and n_tokens != self._n_previous:
            return False
        for ring in self._layout.rings:
            first = ring.first(n_tokens)
            kept = ring.first(self._loaded) <= first and self._highest <= first + ring.capacity
            if first < n_tokens and not kept:
                return False
        return True

    def return_to(self, n_tokens: int) -> None:
        """Go back to where `can_return` allows."""
        if not n_tokens:
            self.clear()
        elif self._layout.state is not None:
            self._state, self._spare = self._previous, None
            self._previous, self._n_previous = None, -1

    def clear(self) -> None:
        self._state = self._spare = self._previous = self._rings = None
        self._n_previous = -1
        self._loaded = self._highest = 0

    def capture(self, n_tokens: int, logits: Logits | None = None) -> Point:
        """The tail as it is, of `n_tokens` > 0: a reference to the state, a copy of rings and logits."""
        memory, rings = self._pool.captured_rings(n_tokens)
        for i, rows in enumerate(rings):
            before, after = self._ring_rows(i, n_tokens)
            rows[: len(before)] = before
            rows[len(before) :] = after
        return Point(n_tokens, self._state, memory, rings, None if logits is None else logits.copy())

    def load(self, point: Point) -> None:
        """Become what was captured."""
        rings = self._rings
        self.clear()
        self._state = point.state
        self._loaded = self._highest = point.n_tokens
        if not self._layout.rings:
            return
        self._rings = rings if rings is not None else self._pool.rings()
        for i, rows in enumerate(point.rings):
            at = 0
            for run in self._ring_rows(i, point.n_tokens):
                run[:] = rows[at : at + len(run)]
                at += len(run)

    def _ring_rows(self, i: int, n_tokens: int) -> tuple[Bytes, Bytes]:
        """The rows that going on at `n_tokens` needs, in the order of positions, as they lie: in two runs."""
        ring, offset = self._layout.rings[i], self._pool.ring_offsets[i]
        assert self._rings is not None
        data = self._rings.bytes[offset : offset + ring.n_bytes]
        first = ring.first(n_tokens)
        n_rows, place = n_tokens - first, first % ring.capacity
        n_before = min(n_rows, ring.capacity - place)
        start, size = place * ring.row_bytes, ring.row_bytes
        return data[start : start + n_before * size], data[: (n_rows - n_before) * size]
