"""Pooling and normalising are those of llama-server."""

import numpy as np
import pytest

from runtime.pooling import EUCLIDEAN, MAX_INT16, NO_NORM, TAXICAB, Pooling, normalise, pool

ROWS = np.array([[1, -2, 2], [3, 0, 4], [2, 5, -6]], np.float32)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (Pooling.NONE, ROWS),
        (Pooling.MEAN, [[2, 1, 0]]),
        (Pooling.CLS, [[1, -2, 2]]),
        (Pooling.LAST, [[2, 5, -6]]),
    ],
)
def test_rows_become_one_vector_or_stay_rows(pooling: Pooling, expected: np.ndarray) -> None:
    vectors = pool(ROWS, pooling)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, expected)


def test_the_result_does_not_change_with_the_runners_buffer() -> None:
    rows = ROWS.copy()
    pooled = [pool(rows, p) for p in (Pooling.NONE, Pooling.CLS, Pooling.LAST)]
    rows[:] = 0
    assert all(vectors.any() for vectors in pooled)


def test_what_cannot_be_pooled_is_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        pool(ROWS[:0], Pooling.MEAN)
    with pytest.raises(ValueError, match="ranking"):
        pool(ROWS, Pooling.RANK)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (NO_NORM, [3, 0, -4]),
        (MAX_INT16, [24570, 0, -32760]),
        (TAXICAB, [3 / 7, 0, -4 / 7]),
        (EUCLIDEAN, [0.6, 0, -0.8]),
        (3, np.array([3, 0, -4]) / (27 + 64) ** (1 / 3)),
        (10_000, [0.75, 0, -1]),
    ],
)
def test_vectors_are_divided_by_their_norm(kind: int, expected: np.ndarray) -> None:
    vectors = normalise(np.array([[3, 0, -4], [6, 0, -8]], np.float32), kind)
    assert vectors.dtype == np.float32
    assert np.allclose(vectors[0], expected, rtol=1e-6)
    assert kind == NO_NORM or np.allclose(vectors[1], expected, rtol=1e-6)


@pytest.mark.parametrize("kind", [NO_NORM, MAX_INT16, TAXICAB, EUCLIDEAN, 5])
def test_zeros_stay_zeros_and_extremes_stay_numbers(kind: int) -> None:
    assert not normalise(np.zeros((1, 4), np.float32), kind).any()
    for size in (1e-38, 1e38):
        assert np.isfinite(normalise(np.full((1, 4), size, np.float32), kind)).all()


def test_an_unknown_normalisation_is_refused() -> None:
    with pytest.raises(ValueError, match="-2"):
        normalise(ROWS, -2)
