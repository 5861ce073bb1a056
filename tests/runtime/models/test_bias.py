"""Biases by distance are those of the papers."""

import numpy as np
import pytest

from runtime.models.bias import alibi, buckets


def test_alibi_slopes_halve_from_head_to_head_and_interleave_beyond_a_power_of_two() -> None:
    """The slopes of the paper for 8 heads, and for 12 those of 16 heads in between."""
    assert np.allclose(-alibi(8)(np.array([1.0]))[:, 0], [2.0**-i for i in range(1, 9)])
    assert np.allclose(-alibi(12)(np.array([-1.0]))[8:, 0], [2.0 ** -(i / 2) for i in (1, 3, 5, 7)])


@pytest.mark.parametrize(
    ("distance", "bucket"),
    [
        (0, 0),
        (-1, 1),
        (-7, 7),
        (-8, 8),
        (-127, 15),
        (-128, 15),
        (-5000, 15),
        (1, 17),
        (7, 23),
        (8, 24),
        (900, 31),
    ],
)
def test_distances_fall_into_t5s_buckets(distance: int, bucket: int) -> None:
    """32 buckets, as all published models have."""
    assert buckets(np.array([float(distance)]), 32)[0] == bucket
