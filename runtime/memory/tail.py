"""What a sequence remembers as of exactly n tokens, beside the blocks that hold rows of every position.

state   bytes that every step replaces as a whole: recurrences and convolutions of all layers. A step reads
        the buffer `before` and writes the whole of `after`, so a step that was given up has changed nothing.
ring    rows of the latest positions, all layers of a position together; the row of position p lies at
        ``p % capacity``. A step appends and never overwrites what going on from before it needs, so the same
        holds; and a sequence can go back exactly as far as the rows it then needs are still there.

A point is a tail captured at n: the state's bytes and, of each ring in position order, the rows that going on
at n needs. Its bytes are a function of the tokens alone.
"""

from dataclasses import dataclass
from itertools import accumulate

ALIGNMENT = 64


def aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class TailAddresses:
    """Where a step finds a sequence's tail: state to read, state to write, and its rings in a row."""

    before: int = 0
    after: int = 0
    rings: int = 0


NO_TAIL = TailAddresses()


@dataclass(frozen=True, slots=True)
class Part:
    """One named run of bytes of a point. Equal `layout_id` and size mean interchangeable bytes."""

    name: str
    layout_id: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """`n_bytes` of f32 that every step replaces; zero before the first token."""

    layout_id: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class RingLayout:
    """Rows of `row_bytes`, of which going on at n needs those of positions [first(n), n).

    ``first(n) = max(0, n // period * period - back)``: `back` rows before the last multiple of `period`.
    `capacity` rows leave room for those and for the largest step.
    """

    name: str
    layout_id: str
    row_bytes: int
    capacity: int
    period: int = 1
    back: int = 0

    @property
    def n_bytes(self) -> int:
        return self.capacity * self.row_bytes

    def first(self, n_tokens: int) -> int:
        return max(0, n_tokens // self.period * self.period - self.back)

    def captured_bytes(self, n_tokens: int) -> int:
        return (n_tokens - self.first(n_tokens)) * self.row_bytes


@dataclass(frozen=True, slots=True)
class TailLayout:
    """The tail of a model's sequences; `state` None: no recurrent layers."""

    state: StateLayout | None = None
    rings: tuple[RingLayout, ...] = ()

    @property
    def layouts(self) -> tuple[Part, ...]:
        """The parts that a point can have, at their largest."""
        state = () if self.state is None else (Part("state", self.state.layout_id, self.state.n_bytes),)
        return (*state, *(Part(r.name, r.layout_id, r.n_bytes) for r in self.rings))

    @property
    def state_bytes(self) -> int:
        return self.state.n_bytes if self.state is not None else 0

    @property
    def ring_offsets(self) -> tuple[int, ...]:
        """Where each ring begins after `TailAddresses.rings`, then where the last one ends."""
        return tuple(accumulate((aligned(ring.n_bytes) for ring in self.rings), initial=0))

    @property
    def most_captured_bytes(self) -> int:
        """Of the rings of a point, wherever it is."""
        return sum((ring.back + ring.period - 1) * ring.row_bytes for ring in self.rings)

    def memory_bytes(self, n_sequences: int, point_bytes: int) -> int:
        """What so many sequences take, points of `point_bytes`, and the next point, before others go for it.

        A sequence has two states, one to read and one to write.
        """
        a_sequence = 2 * self.state_bytes + self.ring_offsets[-1]
        return n_sequences * a_sequence + point_bytes + self.state_bytes + self.most_captured_bytes

    def parts(self, n_tokens: int) -> tuple[Part, ...]:
        """What a point at `n_tokens` consists of: the state, then rings in order. None of them is empty."""
        state = () if self.state is None else (Part("state", self.state.layout_id, self.state.n_bytes),)
        rings = (Part(r.name, r.layout_id, r.captured_bytes(n_tokens)) for r in self.rings)
        return tuple(part for part in (*state, *rings) if part.n_bytes)

    def captured_bytes(self, n_tokens: int) -> int:
        return sum(part.n_bytes for part in self.parts(n_tokens))
