"""Tails: what a sequence goes on from is, to the byte, what it was, however it got there."""

import ctypes
import hashlib

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from runtime.memory.points import Point, Tail, TailPool, in_use
from runtime.memory.tail import RingLayout, StateLayout, TailAddresses, TailLayout

STEP = 24
STATE = StateLayout("state", 96)
RINGS = (
    RingLayout("short", "short", 8, 4 + 1 + STEP, back=4),
    RingLayout("periodic", "periodic", 4, 8 + 16 + STEP, period=16, back=8),
)
LAYOUTS = (TailLayout(STATE, RINGS), TailLayout(STATE), TailLayout(None, RINGS))


def digest(tokens: bytes, size: int, name: str) -> bytes:
    return hashlib.blake2b(tokens + name.encode(), digest_size=32).digest() * (size // 32 + 1)


def state_of(tokens: bytes) -> bytes:
    return digest(tokens, STATE.n_bytes, "state")[: STATE.n_bytes] if tokens else bytes(STATE.n_bytes)


def row_of(tokens: bytes, position: int, ring: RingLayout) -> bytes:
    return digest(tokens[: position + 1], ring.row_bytes, ring.name)[: ring.row_bytes]


def captured(layout: TailLayout, tokens: bytes) -> list[bytes]:
    """What a point after these tokens must consist of."""
    n = len(tokens)
    rings = (b"".join(row_of(tokens, p, r) for p in range(r.first(n), n)) for r in layout.rings)
    return [part for part in (state_of(tokens) if layout.state else b"", *rings) if part]


def memory(address: int, n_bytes: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * n_bytes).from_address(address), np.uint8)


class Sequence:
    """A tail and the tokens behind it; steps check what they read and write what a model would."""

    def __init__(self, pool: TailPool) -> None:
        self.pool = pool
        self.tail = Tail(pool)
        self.tokens = b""

    def reads(self) -> None:
        """Everything that a step reads is what these tokens leave."""
        where, n = self.tail.addresses, len(self.tokens)
        if self.pool.layout.state:
            assert memory(where.before, STATE.n_bytes).tobytes() == state_of(self.tokens)
        for ring, offset in zip(self.pool.layout.rings, self.pool.ring_offsets, strict=False):
            for p in range(ring.first(n), n):
                at = where.rings + offset + p % ring.capacity * ring.row_bytes
                assert memory(at, ring.row_bytes).tobytes() == row_of(self.tokens, p, ring)

    def step(self, new: bytes, given_up: bool = False) -> None:
        start, tokens = len(self.tokens), self.tokens + new
        self.tail.reserve(len(tokens))
        where = self.tail.addresses
        assert in_use(self.pool.layout, where)
        self.reads()
        if self.pool.layout.state:
            memory(where.after, STATE.n_bytes)[:] = np.frombuffer(
                state_of(b"nonsense" if given_up else tokens), np.uint8
            )
        for ring, offset in zip(self.pool.layout.rings, self.pool.ring_offsets, strict=False):
            for p in range(start, len(tokens)):
                at = where.rings + offset + p % ring.capacity * ring.row_bytes
                row = bytes(ring.row_bytes) if given_up else row_of(tokens, p, ring)
                memory(at, ring.row_bytes)[:] = np.frombuffer(row, np.uint8)
        if not given_up:
            self.tail.commit(start)
            self.tokens = tokens


class Tails(RuleBasedStateMachine):
    sequences = Bundle("sequences")
    points = Bundle("points")

    @initialize(target=sequences, layout=st.sampled_from(LAYOUTS))
    def begin(self, layout: TailLayout) -> Sequence:
        self.pool = TailPool(layout)
        self.kept: list[tuple[Point, bytes]] = []
        return Sequence(self.pool)

    @rule(target=sequences)
    def another(self) -> Sequence:
        return Sequence(self.pool)

    @rule(sequence=sequences, token=st.integers(0, 2), n=st.integers(1, STEP), given_up=st.integers(0, 3))
    def step(self, sequence: Sequence, token: int, n: int, given_up: int) -> None:
        if len(sequence.tokens) < 300:
            sequence.step(bytes([token]) * n, given_up == 0)

    @rule(target=points, sequence=sequences)
    def capture(self, sequence: Sequence) -> tuple[Point, bytes] | None:
        if not sequence.tokens:
            return None
        point = sequence.tail.capture(len(sequence.tokens))
        assert [part.nbytes for part in point.parts] == [
            part.n_bytes for part in self.pool.layout.parts(len(sequence.tokens))
        ]
        self.kept.append((point, sequence.tokens))
        return self.kept[-1]

    @rule(sequence=sequences, kept=points)
    def load(self, sequence: Sequence, kept: tuple[Point, bytes] | None) -> None:
        if kept is None:
            return
        sequence.tail.load(kept[0])
        sequence.tokens = kept[1]
        again = sequence.tail.capture(len(sequence.tokens))
        assert [p.tobytes() for p in again.parts] == [p.tobytes() for p in kept[0].parts]

    @rule(sequence=sequences, back=st.integers(0, 60))
    def go_back(self, sequence: Sequence, back: int) -> None:
        n = len(sequence.tokens) - back
        if n >= 0 and sequence.tail.can_return(n):
            if n < len(sequence.tokens):
                sequence.tail.return_to(n)
            sequence.tokens = sequence.tokens[:n]

    @rule(sequence=sequences)
    def clear(self, sequence: Sequence) -> None:
        sequence.tail.clear()
        sequence.tokens = b""

    @invariant()
    def points_hold_what_their_tokens_leave(self) -> None:
        for point, tokens in self.kept:
            assert [part.tobytes() for part in point.parts] == captured(self.pool.layout, tokens)


Tails.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestTails = Tails.TestCase


def grown(layout: TailLayout, *steps: int) -> Sequence:
    sequence = Sequence(TailPool(layout))
    for i, n in enumerate(steps):
        sequence.step(bytes([i % 7]) * n)
    return sequence


def test_a_state_goes_back_to_before_the_last_step_and_no_farther() -> None:
    sequence = grown(TailLayout(STATE), 20, 20, 5)
    assert [n for n in range(45) if sequence.tail.can_return(n)] == [0, 40]
    sequence.tail.return_to(40)
    sequence.tokens = sequence.tokens[:40]
    sequence.step(b"other")
    sequence.reads()


def test_rings_go_back_as_far_as_their_rows_are_there() -> None:
    sequence = grown(TailLayout(None, RINGS[1:]), 24, 24, 24)
    # 48 rows are left, from position 24 on; going on at n needs those from 8 before the last multiple of 16
    assert min(n for n in range(1, 72) if sequence.tail.can_return(n)) == 32
    assert all(sequence.tail.can_return(n) for n in range(32, 72))


def test_a_loaded_ring_goes_back_only_to_what_was_captured() -> None:
    sequence = grown(TailLayout(None, RINGS[1:]), 24, 16)
    sequence.tail.load(sequence.tail.capture(40))
    assert [n for n in range(41) if sequence.tail.can_return(n)] == [0, *range(32, 41)]


def test_a_point_of_a_state_costs_no_copy() -> None:
    sequence = grown(TailLayout(STATE), 8)
    before = sequence.pool.n_states
    points = [sequence.tail.capture(8) for _ in range(9)]
    assert sequence.pool.n_states == before
    assert len({point.parts[0].ctypes.data for point in points}) == 1


def test_states_that_nobody_refers_to_are_used_again() -> None:
    sequence = grown(LAYOUTS[0], *[8] * 30)
    assert (sequence.pool.n_states, sequence.pool.n_rings) == (2, 1)
    point = sequence.tail.capture(240)
    sequence.step(b"more")
    sequence.step(b"more")
    assert sequence.pool.n_states == 3
    del point
    assert sequence.pool.n_states == 2
    sequence.tail.clear()
    assert (sequence.pool.n_states, sequence.pool.n_rings) == (0, 0)


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("a state of nobody", {"before": 64}),
        ("written where it is read", {"after": "before"}),
        ("the shared state of zeros is written", {"after": "zero"}),
        ("rings of nobody", {"rings": 0}),
    ],
)
def test_checked_mode_refuses(why: str, change: dict[str, object]) -> None:
    sequence = grown(LAYOUTS[0], 8)
    sequence.tail.reserve(9)
    sound = sequence.tail.addresses
    known = {"before": sound.before, "zero": sequence.pool.zero.address}
    wrong = {name: known.get(value, value) for name, value in change.items()}
    fields = {"before": sound.before, "after": sound.after, "rings": sound.rings}
    assert in_use(LAYOUTS[0], sound)
    assert not in_use(LAYOUTS[0], TailAddresses(**(fields | wrong))), why
