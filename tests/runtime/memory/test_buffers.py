"""Buffers: who has one has it alone, and pages stay as far as they may."""

import gc
import mmap
import threading
import weakref

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.memory.buffers import Buffer, Buffers, Kept

PAGE = mmap.PAGESIZE
HUGE = 2 << 20


def used(buffers: Buffers, n: int) -> None:
    """`n` buffers were in use at once, written whole."""
    held = [buffers.take() for _ in range(n)]
    for buffer in held:
        buffer.bytes[:] = 0xEE


def n_left(buffers: Buffers, n: int) -> int:
    """Of the next `n` buffers, how many still have what was written."""
    held = [buffers.take() for _ in range(n)]
    return sum(bool(buffer.bytes.any()) for buffer in held)


def test_a_reference_may_end_on_any_thread() -> None:
    buffers = Buffers(100)
    held = [[buffers.take() for _ in range(50)] for _ in range(4)]
    threads = [threading.Thread(target=each.clear) for each in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert buffers.n_used == 0
    taken = [buffers.take() for _ in range(200)]
    assert len({buffer.address for buffer in taken}) == 200
    assert all(buffer.address % PAGE == 0 for buffer in taken)


def test_memory_that_is_let_go_keeps_its_pages_until_others_need_room_for_theirs() -> None:
    kept = Kept(10 * PAGE)
    buffers, others = Buffers(2 * PAGE, kept), Buffers(PAGE, kept)
    used(buffers, 4)
    assert (n_left(buffers, 5), kept.n_resident) == (4, 10 * PAGE)
    used(others, 2)
    assert kept.n_resident == 10 * PAGE
    assert (n_left(buffers, 4), kept.n_resident) == (4, 10 * PAGE)
    held = [others.take() for _ in range(8)]
    assert kept.n_resident == 10 * PAGE
    assert n_left(buffers, 1) == 1
    del held


def test_what_is_in_use_is_never_taken_away_and_counts() -> None:
    kept = Kept(2 * PAGE)
    buffers = Buffers(PAGE, kept)
    held = [buffers.take() for _ in range(5)]
    for buffer in held:
        buffer.bytes[:] = 7
    assert kept.n_resident == 5 * PAGE
    assert not buffers.prepare()
    held.append(buffers.take())
    assert all(buffer.bytes.all() for buffer in held[:5])
    del held, buffer
    used(buffers, 1)
    assert kept.n_resident == 2 * PAGE, "what went beyond is given back as soon as somebody takes a buffer"


def test_a_smaller_buffer_gives_back_what_a_larger_one_had() -> None:
    buffers = Buffers(4 * PAGE)
    buffers.take().bytes[:] = 0xEE
    assert buffers.take(PAGE + 1).bytes.all()
    whole = buffers.take().bytes
    assert whole[: 2 * PAGE].all()
    assert not whole[2 * PAGE :].any()


def test_of_free_buffers_the_one_is_taken_that_has_the_pages_and_few_more() -> None:
    buffers = Buffers(4 * PAGE)
    sizes = [4 * PAGE, PAGE, 2 * PAGE, 3 * PAGE]
    held = [buffers.take(size) for size in sizes]
    where = {buffer.address: size for buffer, size in zip(held, sizes, strict=True)}
    held.clear()
    first = buffers.take(2 * PAGE)
    second = buffers.take(2 * PAGE)
    third = buffers.take(4 * PAGE)
    assert [where[b.address] for b in (first, second, third)] == [2 * PAGE, 3 * PAGE, 4 * PAGE]


@pytest.mark.parametrize("n_bytes", [3 * PAGE, 17 * HUGE // 2])
def test_a_prepared_buffer_has_its_pages_before_it_is_taken(n_bytes: int) -> None:
    kept = Kept()
    buffers = Buffers(n_bytes, kept)
    steps = 0
    while buffers.prepare():
        steps += 1
    assert steps == -(-n_bytes // HUGE)
    n_resident = kept.n_resident
    assert n_resident >= n_bytes
    buffer = buffers.take()
    assert kept.n_resident == n_resident and buffers.n_used == 1
    assert buffer.address % (HUGE if n_bytes > HUGE else PAGE) == 0
    assert buffers.prepare(), "the next one"


def test_nothing_is_prepared_where_it_could_not_be_kept() -> None:
    kept = Kept(4 * HUGE)
    buffers = Buffers(8 * HUGE, kept)
    while buffers.prepare():
        pass
    assert kept.n_resident == 4 * HUGE


def test_the_last_reference_takes_the_memory_of_all_along() -> None:
    buffers = Buffers(PAGE, Kept(PAGE))
    buffer = buffers.take()
    ends = weakref.ref(buffers)
    gc.disable()
    try:
        del buffers
        assert ends() is None, "a cycle of references keeps it"
        buffer.bytes[:] = 1
    finally:
        gc.enable()


class Pages(RuleBasedStateMachine):
    """Two sizes that share what they may keep."""

    @initialize(limit=st.integers(0, 20))
    def begin(self, limit: int) -> None:
        self.kept = Kept(limit * PAGE)
        self.buffers = [Buffers(3 * PAGE, self.kept), Buffers(2 * PAGE, self.kept)]
        self.held: list[tuple[Buffer, int]] = []
        self.n_taken = 0

    @rule(which=st.integers(0, 1), share=st.integers(1, 6))
    def take(self, which: int, share: int) -> None:
        before = self.kept.n_resident
        buffer = self.buffers[which].take(self.buffers[which].n_bytes * share // 6)
        self.n_taken += 1
        buffer.bytes[:] = self.n_taken % 256
        self.held.append((buffer, self.n_taken % 256))
        assert self.kept.n_resident <= max(before, self.kept.n_bytes or 0, self.in_use())

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100))
    def let_go(self, which: int) -> None:
        self.held.pop(which % len(self.held))

    @rule(which=st.integers(0, 1))
    def prepare(self, which: int) -> None:
        if self.buffers[which].prepare():
            assert self.kept.n_resident <= (self.kept.n_bytes or 0)

    def in_use(self) -> int:
        return sum(-(-len(buffer.bytes) // PAGE) * PAGE for buffer, _ in self.held)

    @invariant()
    def each_is_its_holder_s_alone(self) -> None:
        for buffer, value in self.held:
            assert (buffer.bytes == value).all()
        assert sum(buffers.n_used for buffers in self.buffers) == len(self.held)
        assert all(any(b.in_use(buffer.address) for b in self.buffers) for buffer, _ in self.held)

    @invariant()
    def what_is_in_use_is_counted(self) -> None:
        assert self.kept.n_resident >= self.in_use()

    @invariant()
    def resident_pages_equal_a_recount(self) -> None:
        assert self.kept.n_resident == sum(sum(buffers._extents) for buffers in self.buffers)
        for buffers in self.buffers:
            for number, extent in enumerate(buffers._extents):
                assert not np.any(buffers._bytes(number)[extent:]), "beyond its pages there is nothing"


Pages.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestPages = Pages.TestCase
