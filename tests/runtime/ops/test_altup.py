"""Alternating updates against float64 numpy."""

import numpy as np

from runtime.kernels import altup
from runtime.kernels.job import f32_bits
from tests.runtime.ops.harness import bench
from tests.runtime.ops.test_rows import draw

ROWS, N = 5, 48


def test_rows_become_as_long_as_others() -> None:
    x, target = draw(ROWS, N), 3 * draw(ROWS, N, seed=1)
    x[2] = 0
    with bench() as b:
        out, other = b.array(x), b.array(target)
        b.rows(ROWS)
        b.run(altup.match_length, out.ctypes.data, 4 * N, other.ctypes.data, 4 * N, N)
        got = out.copy()
    lengths = np.linalg.norm(target.astype(float), axis=1) / np.maximum(np.linalg.norm(x, axis=1), 1e-30)
    assert np.abs(got - x * lengths[:, None]).max() < 1e-5
    assert not got[2].any()


def test_each_stream_is_predicted_from_all_of_them() -> None:
    x, c = draw(ROWS, 4, N), draw(ROWS, 4, 4, seed=1)
    with bench() as b:
        out, coefficients = b.array(x), b.array(c)
        b.rows(ROWS)
        b.run(altup.predict, out.ctypes.data, 16 * N, N, coefficients.ctypes.data, 64)
        got = out.copy()
    assert np.abs(got - (x + np.einsum("rij,rjn->rin", c.astype(float), x))).max() < 1e-5


def test_each_stream_is_corrected_by_what_the_first_lacks() -> None:
    x, y, c = draw(ROWS, 4, N), draw(ROWS, N, seed=1), draw(ROWS, 16, seed=2)
    with bench() as b:
        out, result, coefficients = b.array(x), b.array(y), b.array(c)
        b.rows(ROWS)
        b.run(
            altup.correct, out.ctypes.data, 16 * N, N, result.ctypes.data, 4 * N, coefficients.ctypes.data, 64
        )
        got = out.copy()
    change = y.astype(float) - x[:, 0]
    assert np.abs(got - (x + (1 + c[:, :4, None]) * change[:, None])).max() < 1e-5


def test_what_is_left_of_a_row_are_its_outliers() -> None:
    x = 1 + draw(ROWS, N + 16)
    with bench() as b:
        out = b.array(x)
        b.rows(ROWS)
        b.run(altup.keep_outliers, out.ctypes.data, 4 * (N + 16), N, f32_bits(0.5))
        got = out.copy()
    exact = x[:, :N].astype(float)
    threshold = exact.mean(1, keepdims=True) + 0.5 * exact.std(1, ddof=1, keepdims=True)
    assert np.abs(got[:, :N] - np.maximum(exact - threshold, 0)).max() < 1e-6
    assert np.array_equal(got[:, N:], x[:, N:])
