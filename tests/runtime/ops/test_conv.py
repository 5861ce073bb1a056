"""Causal convolutions against float64 numpy, in every schedule."""

import numpy as np
import pytest

from runtime.kernels.conv import conv
from tests.runtime.ops.harness import Bench
from tests.runtime.ops.recurrences import Emit, alone, assert_bits_depend_on_the_sequence_alone

N, T = 48, 130


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def op(taps: int, *, bias: bool = False, silu: bool = False, gated: bool = False) -> Emit:
    """Columns of x: factors before, factors after, inputs."""
    weight, shift = draw(taps, N, seed=1), draw(N, seed=2)

    def emit(b: Bench, x: np.ndarray, out: np.ndarray) -> None:
        w, at = b.array(weight), b.array(shift)
        b.run(conv, x.ctypes.data + 8 * N, 12 * N, -8 * N if gated else 0, -4 * N if gated else 0, N, taps,
              w.ctypes.data, at.ctypes.data if bias else 0, int(silu), out.ctypes.data, 4 * N, 0)  # fmt: skip

    return emit


def formula(x: np.ndarray, taps: int, *, bias: bool, silu: bool, gated: bool) -> np.ndarray:
    before, after, inputs = x.astype(float).reshape(len(x), 3, N).transpose(1, 0, 2)
    if gated:
        inputs = before * inputs
    padded = np.concatenate([np.zeros((taps - 1, N)), inputs])
    weight = draw(taps, N, seed=1).astype(float)
    y = sum(weight[j] * padded[j : j + len(x)] for j in range(taps))
    if bias:
        y = y + draw(N, seed=2)
    if silu:
        y = y / (1 + np.exp(-y))
    return y * after if gated else y


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("bias", "silu", "gated"), [(False, False, True), (True, True, False), (False, True, False)]
)
def test_convolutions_equal_their_formula(taps: int, bias: bool, silu: bool, gated: bool) -> None:
    x = draw(T, 3 * N)
    form = {"bias": bias, "silu": silu, "gated": gated}
    got, state = alone(op(taps, **form), x, (taps - 1) * N, N)
    assert np.abs(got - formula(x, taps, **form)).max() < 1e-5
    inputs = x[:, 2 * N :] * x[:, :N] if gated else x[:, 2 * N :]
    assert np.array_equal(state.reshape(taps - 1, N), inputs[T - taps + 1 :])


@pytest.mark.parametrize("gated", [False, True])
def test_bits_of_convolutions_depend_on_the_sequence_alone(gated: bool) -> None:
    assert_bits_depend_on_the_sequence_alone(
        op(4, bias=True, silu=True, gated=gated), lambda seed: draw(T, 3 * N, seed=seed), 3 * N, N
    )
