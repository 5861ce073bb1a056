"""Narrow floats against tables of all their values, and where a model is trained with them."""

import numpy as np
import pytest

from runtime.kernels import roundtrip as rt
from tests.runtime.ops.harness import bench

E4M3 = np.array(
    [m * 2.0**-9 for m in range(8)]
    + [(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8) if (e, m) != (8, 7)]
)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The nearest of ascending values by size; of two, the one whose place, and so mantissa, is even."""
    size = np.abs(x)
    high = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    low = high - 1
    below, above = size - table[low], table[high] - size
    up = (above < below) | ((above == below) & (high % 2 == 0))
    return np.sign(x) * np.where(up, table[high], table[low])


def expected(x: np.ndarray, table: np.ndarray, block: int, floor: float) -> np.ndarray:
    out = x.astype(np.float64)
    for i in range(0, len(x), block):
        part = out[i : i + block]
        top = max(np.abs(part).max(), floor)
        if top:
            scale = 2.0 ** np.ceil(np.log2(top / table[-1]))
            part[:] = nearest(part / scale, table) * scale
    return out


def run(x: np.ndarray, heads: int, n: int, kind: int) -> np.ndarray:
    with bench() as b:
        values = b.array(x)
        b.rows(len(x))
        b.run(rt.round_heads, values.ctypes.data, values.strides[0], heads, x.shape[1] // heads, n, kind)
        return values.copy()


def rows(scale: float) -> np.ndarray:
    """Of two heads of 96, with ties among them, a block of zeros and one far below the smallest scale."""
    x = (np.random.default_rng(1).standard_normal((20, 192)) * scale).astype(np.float32)
    x[3, :64] = 0
    x[4, :64] *= 1e-7
    x[5, :16] = np.array([448, 17, 19, 1.0625, 1.1875, 2.0**-10, 3 * 2.0**-10, 5 * 2.0**-10] * 2) * 2.0**-4
    return x


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_rows_are_rounded_to_e4m3_in_blocks_and_their_rotated_dims_are_not(scale: float) -> None:
    x = rows(scale)
    got = run(x, 2, 80, rt.E4M3).reshape(-1, 96)
    for line, out in zip(x.reshape(-1, 96), got, strict=True):
        assert np.array_equal(out[:80], expected(line[:80], E4M3, 64, 1e-4).astype(np.float32))
        assert np.array_equal(out[80:], line[80:])


def test_heads_of_the_index_are_rotated_and_rounded_to_e2m1() -> None:
    signs = np.array([[(-1) ** bin(i & j).count("1") for j in range(64)] for i in range(64)]) / 8
    x = np.random.default_rng(2).standard_normal((20, 128)).astype(np.float32)
    got = run(x, 2, 64, rt.E2M1).reshape(-1, 64)
    turned = x.reshape(-1, 64).astype(np.float64) @ signs
    for line, out in zip(turned, got, strict=True):
        for first in (0, 32):
            part = out[first : first + 32]
            exact = line[first : first + 32]
            scale = 2.0 ** np.ceil(np.log2(np.abs(exact).max() / 6))
            assert np.isin(np.abs(part) / scale, E2M1).all()
            # half the widest gap of the type, and what rotating in f32 moves
            assert np.abs(part - exact).max() <= scale * (1 + 1e-5)
            close = np.abs(part - expected(exact, E2M1, 32, 0.0)) < 1e-6
            assert close.mean() > 0.9
