"""Our own transcendental functions are accurate where models use them."""

import math

import numba as nb
import numpy as np
import pytest

from runtime.kernels import vecmath
from runtime.kernels.simd import load_f32, store

GRID = np.concatenate(
    [np.linspace(-100, 90, 16 * 2000), np.linspace(-1, 1, 16 * 1000), np.logspace(-20, -1, 16 * 40)]
).astype(np.float32)


def apply(function, x: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)

    @nb.njit
    def run(a, b, n):
        for i in range(0, 4 * n, 64):
            store(b + i, function(load_f32(a + i)))

    run(x.ctypes.data, out.ctypes.data, len(x))
    return out.astype(np.float64)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("function", "reference", "low", "high", "bound"),
    [
        (vecmath.vexp, np.exp, -87, 88, 2e-7),
        (vecmath.vsigmoid, lambda x: 1 / (1 + np.exp(-x)), -80, 90, 3e-7),
        (vecmath.vsilu, lambda x: x / (1 + np.exp(-x)), -80, 90, 3e-7),
        (vecmath.vtanh, np.tanh, -100, 90, 2e-7),
        (vecmath.vgelu, gelu, -3, 90, 2e-6),
        (vecmath.vsoftplus, lambda x: np.logaddexp(0, x), -80, 90, 3e-7),
    ],
)
def test_relative_error_is_small(function, reference, low: float, high: float, bound: float) -> None:
    x = GRID[(low <= GRID) & (high >= GRID)]
    x = x[: len(x) // 16 * 16].copy()
    expected = reference(x.astype(np.float64))
    assert (np.abs(apply(function, x) - expected) <= bound * np.abs(expected) + 1e-37).all()


def test_far_out_arguments_saturate() -> None:
    x = np.array([-np.inf, -1e30, -87.5, 0, 200, np.inf, -20, 20] * 2, np.float32)
    exp = apply(vecmath.vexp, x)
    assert list(exp[:4]) == [0, 0, 0, 1] and exp[4] == exp[5] == pytest.approx(math.exp(88))
    assert list(apply(vecmath.vtanh, x)[[0, 5, 6, 7]]) == [-1, 1, -1, 1]
    assert list(apply(vecmath.vsoftplus, x)[[0, 1, 4, 5]]) == [0, 0, 200, np.inf]
    finite = np.clip(x, -1e4, 1e4)
    assert np.allclose(apply(vecmath.vgelu, finite), np.maximum(finite, 0), atol=1e-7)


sincos = nb.njit(lambda angle: vecmath.sincos(angle))
log = nb.njit(lambda x: vecmath.log_f64(x))


def test_sine_and_cosine_are_accurate_to_a_millionth_turn_of_context() -> None:
    rng = np.random.default_rng(0)
    angles = rng.uniform(-1, 1, 4000) * 10.0 ** rng.uniform(-6, 6, 4000)
    for angle in [*angles, 0.0, math.pi / 2, math.pi, 1e6, *np.arange(50) * math.pi / 4]:
        s, c = sincos(angle)
        assert abs(s - math.sin(angle)) < 3e-16 and abs(c - math.cos(angle)) < 3e-16


def test_logarithm_is_accurate() -> None:
    rng = np.random.default_rng(0)
    for x in [
        1.0,
        2.0,
        0.7071,
        1.5,
        *(10.0 ** rng.uniform(-30, 30, 2000)),
        *(1 + rng.uniform(-1, 1, 500) / 8),
    ]:
        assert log(x) == pytest.approx(math.log(x), rel=4e-16, abs=1e-17)
