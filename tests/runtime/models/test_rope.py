"""Rope frequencies against the formulas of the papers, written down once more."""

import math

import pytest

from runtime.models.rope import Scaling, frequencies, yarn_magnitude


def test_frequencies_fall_geometrically_and_are_divided() -> None:
    assert frequencies(8, 10000.0) == pytest.approx([1.0, 0.1, 0.01, 0.001])
    assert frequencies(4, 100.0, 4.0, [1.0, 5.0]) == pytest.approx([0.25, 0.1 / 20])


def test_yarn_keeps_fast_pairs_and_interpolates_slow_ones() -> None:
    """NTK-by-parts (arXiv:2309.00071, section 3.2): by the turns of each pair over the original context."""
    n_rot, base, factor, original = 128, 10000.0, 16.0, 4096
    got = Scaling("yarn", factor, original, extrapolation=1.0).frequencies(n_rot, base)
    for i, turn in enumerate(got):
        plain = base ** (-2 * i / n_rot)
        turns = original * plain / (2 * math.pi)
        if turns > 40:
            assert turn == plain
        elif turns < 0.9:
            assert turn == pytest.approx(plain / factor)
        else:
            assert plain / factor <= turn <= plain
    assert got == sorted(got, reverse=True)


def test_yarn_without_extrapolation_is_linear_scaling() -> None:
    scaling = Scaling("yarn", 4.0, 4096, extrapolation=0.0)
    assert scaling.frequencies(64, 10000.0) == pytest.approx(frequencies(64, 10000.0, 4.0))


@pytest.mark.parametrize(
    ("factor", "multiplier", "expected"),
    [(1.0, 0.0, 1.0), (0.5, 1.0, 1.0), (40.0, 0.0, 1 + 0.1 * math.log(40)), (16.0, 1.0, 1.0),
     (16.0, 0.5, (1 + 0.1 * math.log(16)) / (1 + 0.05 * math.log(16)))],
)  # fmt: skip
def test_yarn_magnitudes(factor: float, multiplier: float, expected: float) -> None:
    assert yarn_magnitude(factor, multiplier) == pytest.approx(expected)
