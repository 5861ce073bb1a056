"""The copy that sums up is held against numpy's copy and xxhash's sum."""

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from runtime.kernels.summed_copy import copy_and_sum

_ROOM = 128
SIZES = st.one_of(st.integers(0, 1200), st.sampled_from((2048, 2049, 65_536, 737_280, 1_048_560)))


@given(SIZES, st.integers(0, 2**64 - 1), st.integers(0, 65), st.integers(0, 65))
def test_the_bytes_arrive_with_the_sum_that_xxhash_gives(
    n: int, seed: int, read_at: int, write_at: int
) -> None:
    source = np.random.default_rng(n).integers(0, 256, n + _ROOM, dtype=np.uint8)[read_at : read_at + n]
    room = np.zeros(n + 2 * _ROOM, np.uint8)
    start = -room.ctypes.data % 64 + write_at
    assert copy_and_sum(source, room[start : start + n], seed) == xxhash.xxh3_128_digest(
        source.tobytes(), seed=seed
    )
    assert np.array_equal(room[start : start + n], source)
    assert not room[:start].any() and not room[start + n :].any()


def test_a_place_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="300 bytes do not fit a place for 299"):
        copy_and_sum(np.zeros(300, np.uint8), np.zeros(299, np.uint8), 0)
