"""The copy that sums up is held against numpy's copy and xxhash's sum."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from runtime.kernels.summed_copy import _TABLE_ROWS, SummedCopy, _Helper, apart

Bytes = npt.NDArray[np.uint8]
_ROOM = 128
_SEVERAL = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
SIZES = st.one_of(st.integers(0, 1200), st.sampled_from((2048, 2049, 65_536, 737_280, 1_048_560)))


@pytest.fixture(scope="module")
def copy() -> Iterator[SummedCopy]:
    opened = SummedCopy()
    yield opened
    opened.close()


def _random(n: int) -> Bytes:
    return np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)


@given(n=SIZES, seed=st.integers(0, 2**64 - 1), read_at=st.integers(0, 65), write_at=st.integers(0, 65))
def test_the_bytes_arrive_with_the_sum_that_xxhash_gives(
    copy: SummedCopy, n: int, seed: int, read_at: int, write_at: int
) -> None:
    source = _random(n + _ROOM)[read_at : read_at + n]
    room = np.zeros(n + 2 * _ROOM, np.uint8)
    start = -room.ctypes.data % 64 + write_at
    (digest,) = copy([(source, room[start : start + n], seed)])
    assert digest == xxhash.xxh3_128_digest(source.tobytes(), seed=seed)
    assert np.array_equal(room[start : start + n], source)
    assert not room[:start].any() and not room[start + n :].any()


def test_many_pieces_are_copied_by_two_threads_and_keep_their_order(copy: SummedCopy) -> None:
    sizes = [737_280, 3, 1_048_560, 241, 0, 240, *range(1_000_000, 1_000_020)]
    for _ in range(20):
        pieces = [(_random(n), np.zeros(n, np.uint8), n) for n in sizes]
        digests = copy(pieces)
        for (source, destination, seed), digest in zip(pieces, digests, strict=True):
            assert np.array_equal(source, destination)
            assert digest == xxhash.xxh3_128_digest(source.tobytes(), seed=seed)
    assert copy([]) == []


def test_more_pieces_than_go_at_once(copy: SummedCopy) -> None:
    sources = [_random(241 + i % 7) for i in range(2 * _TABLE_ROWS + 1)]
    pieces = [(source, np.zeros_like(source), i) for i, source in enumerate(sources)]
    expected = [xxhash.xxh3_128_digest(source.data, seed=i) for i, source in enumerate(sources)]
    for n in (_TABLE_ROWS - 1, _TABLE_ROWS, _TABLE_ROWS + 1, len(pieces)):
        assert copy(iter(pieces[:n])) == expected[:n]


@pytest.mark.skipif(not _SEVERAL, reason="there is one processor, or none can be asked for")
def test_the_first_are_copied_while_the_next_are_looked_for(copy: SummedCopy) -> None:
    source, places = _random(1 << 20), [np.zeros(1 << 20, np.uint8) for _ in range(9)]

    def looked_for() -> Iterator[tuple[Bytes, Bytes, int]]:
        for round_ in (0, 3, 6):
            for i in range(round_, round_ + 3):
                yield source, places[i], i
            until = time.monotonic() + 20
            while not np.array_equal(places[round_ + 2], source) and time.monotonic() < until:
                time.sleep(0.01)  # longer than the second thread waits for more
            copied.append([np.array_equal(place, source) for place in places].count(True))

    copied: list[int] = []
    assert copy(looked_for()) == [xxhash.xxh3_128_digest(source.data, seed=i) for i in range(9)]
    assert copied == [3, 6, 9]


def test_what_came_before_an_error_has_arrived_when_it_is_raised(copy: SummedCopy) -> None:
    source, places = _random(1 << 20), [np.zeros(1 << 20, np.uint8) for _ in range(6)]

    def looked_for() -> Iterator[tuple[Bytes, Bytes, int]]:
        for place in places:
            yield source, place, 0
        raise LookupError("the next one is missing")

    for _ in range(20):
        with pytest.raises(LookupError, match="the next one is missing"):
            copy(looked_for())
        # Nobody writes to them any more.
        assert all(np.array_equal(place, source) for place in places)
        for place in places:
            place[:] = 0
        assert not any(place.any() for place in places)


@pytest.mark.parametrize(("processors", "is_shared"), [(({0}, 0), False), ((set(), 0), True)])
def test_nobody_helps_where_there_is_known_to_be_one_processor_only(
    copy: SummedCopy,
    monkeypatch: pytest.MonkeyPatch,
    processors: tuple[set[int], int],
    is_shared: bool,
) -> None:
    monkeypatch.setattr("runtime.kernels.summed_copy._processors", lambda: processors)
    started: list[bool] = []
    start = _Helper.start

    def note(self: _Helper, call: Callable[[], None]) -> threading.Event:
        started.append(True)
        return start(self, call)

    monkeypatch.setattr(_Helper, "start", note)
    sources = [_random(1_000_000 + i) for i in range(8)]
    digests = copy([(source, np.zeros_like(source), 0) for source in sources])
    assert digests == [xxhash.xxh3_128_digest(source.data) for source in sources]
    assert bool(started) == is_shared


def test_several_threads_may_copy_at_a_time(copy: SummedCopy) -> None:
    wrong: list[int] = []

    def work(k: int) -> None:
        sources = [_random(1_000_000 + 7 * k + i) for i in range(6)]
        pieces = [(source, np.zeros_like(source), k) for source in sources]
        expected = [xxhash.xxh3_128_digest(source.data, seed=k) for source in sources]
        for _ in range(10):
            if copy(pieces) != expected:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_place_of_another_size_is_refused(copy: SummedCopy) -> None:
    with pytest.raises(ValueError, match="300 bytes do not fit a place for 299"):
        copy([(np.zeros(300, np.uint8), np.zeros(299, np.uint8), 0)])


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no processor can be asked for here")
def test_a_thread_may_go_where_it_likes_again() -> None:
    allowed = os.sched_getaffinity(0)
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    with apart(other):
        mine = os.sched_getaffinity(0)
        theirs = os.sched_getaffinity(other.native_id or 0)
    assert os.sched_getaffinity(0) == allowed
    if len(allowed) > 1:
        assert len(mine) == 1 and mine | theirs == allowed and not mine & theirs
    stop.set()
    other.join()
