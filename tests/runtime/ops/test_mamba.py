"""State spaces against float64 numpy, in every schedule."""

import numpy as np
import pytest

from runtime.kernels import job, mamba
from runtime.kernels.job import f32_bits
from runtime.kernels.quantise import A_F32
from tests.runtime.ops.harness import Bench, bench
from tests.runtime.ops.recurrences import Emit, alone, assert_bits_depend_on_the_sequence_alone

T = 100  # three blocks of tokens and a part of one
HEADS, D, GROUPS, N = 4, 32, 2, 48
X, ROW = HEADS * D, HEADS * D + 2 * GROUPS * N  # floats of the channels of a row, of those with B and C


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def recurrence(
    x: np.ndarray, dt: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, skip: np.ndarray
) -> np.ndarray:
    """y [T, channels] of x, dt [T, channels], A [channels, N], B, C [T, channels, N] and D [channels]."""
    h, out = np.zeros(b.shape[1:]), []
    for t in range(len(x)):
        h = np.exp(dt[t, :, None] * a) * h + (dt[t] * x[t])[:, None] * b[t]
        out.append((h * c[t]).sum(1) + skip * x[t])
    return np.array(out)


def heads_op(*, stream: bool = False) -> Emit:
    """Rows of x: what the convolution gave, then steps."""

    def emit(b: Bench, x: np.ndarray, out: np.ndarray) -> None:
        bias, rate, skip = (
            b.array(v) for v in (draw(HEADS, seed=1), -np.exp(draw(HEADS, seed=2)), draw(HEADS, seed=3))
        )
        ld = 4 * (ROW + 16)
        b.run(mamba.scan_heads, x.ctypes.data, ld, HEADS, D, GROUPS, N, x.ctypes.data + 4 * ROW, ld,
              bias.ctypes.data, rate.ctypes.data, skip.ctypes.data, out.ctypes.data, 4 * X, 0,
              int(stream))  # fmt: skip

    return emit


def test_heads_share_steps_and_decay_and_groups_of_heads_share_b_and_c() -> None:
    rows = draw(T, ROW + 16)
    got, _ = alone(heads_op(), rows, X * N, X)
    exact = rows.astype(float)
    dt = np.logaddexp(0, exact[:, ROW : ROW + HEADS] + draw(HEADS, seed=1))
    a = -np.exp(draw(HEADS, seed=2).astype(float))
    b, c = (
        np.repeat(part.reshape(T, GROUPS, N), X // GROUPS, axis=1)
        for part in np.split(exact[:, X:ROW], 2, axis=1)
    )
    expected = recurrence(
        exact[:, :X],
        np.repeat(dt, D, axis=1),
        np.repeat(a, D)[:, None],
        b,
        c,
        np.repeat(draw(HEADS, seed=3), D),
    )
    assert np.abs(got - expected).max() < 1e-4


@pytest.mark.parametrize("stream", [False, True])
def test_bits_of_scans_over_heads_depend_on_the_sequence_alone(stream: bool) -> None:
    assert_bits_depend_on_the_sequence_alone(
        heads_op(stream=stream), lambda seed: draw(T, ROW + 16, seed=seed), X * N, X
    )


def channels_op(n_state: int, bias: int) -> Emit:
    """Rows of x: channels, steps, z, then B and C from `bias` floats on; results replace the channels."""

    def emit(b: Bench, x: np.ndarray, out: np.ndarray) -> None:
        rates, skip = b.array(tiled_rates(n_state)), b.array(draw(64, seed=3))
        ld, at = 4 * x.shape[1], x.ctypes.data
        b.run(mamba.scan_channels, at, ld, 64, n_state, at + 4 * 64, ld, at + 4 * (192 + bias), ld,
              rates.ctypes.data, skip.ctypes.data, at + 4 * 128, ld, 0)  # fmt: skip
        out[:] = x[:, :64]

    return emit


def rates(n_state: int) -> np.ndarray:
    return -np.exp(draw(64, n_state, seed=2))


def tiled_rates(n_state: int) -> np.ndarray:
    return rates(n_state).reshape(4, 16, n_state).transpose(0, 2, 1)


@pytest.mark.parametrize(("n_state", "bias"), [(16, 0), (16, 4), (32, 8)])
def test_channels_have_steps_of_their_own_and_gates(n_state: int, bias: int) -> None:
    rows = draw(T, 192 + bias + 2 * n_state)
    got, _ = alone(channels_op(n_state, bias), rows, 64 * n_state, 64)
    x, steps, z = (rows[:, i : i + 64].astype(float) for i in (0, 64, 128))
    b, c = (
        np.repeat(part[:, None].astype(float), 64, axis=1)
        for part in np.split(rows[:, 192 + bias :], 2, axis=1)
    )
    y = recurrence(x, np.logaddexp(0, steps), rates(n_state).astype(float), b, c, draw(64, seed=3))
    assert np.abs(got - y * z * sigmoid(z)).max() < 1e-4


def test_bits_of_scans_over_channels_depend_on_the_sequence_alone() -> None:
    assert_bits_depend_on_the_sequence_alone(
        channels_op(32, 0), lambda seed: draw(T, 256, seed=seed), 64 * 32, 64
    )


@pytest.mark.parametrize("groups", [1, 3])
def test_what_was_gated_is_normed_by_groups(groups: int) -> None:
    rows, w = draw(5, 200), draw(96, seed=1)
    with bench() as b:
        x, weight, out = b.array(rows), b.array(w), b.array(np.zeros((5, 96)))
        b.rows(1)  # one by one: a single column's tile is its row
        for j in range(5):
            b.run(mamba.gate_norm_quant, x.ctypes.data + 800 * j, 800, 400, 96, groups, weight.ctypes.data,
                  f32_bits(1e-5), out.ctypes.data + 4 * 96 * j, A_F32, job.ROWS)  # fmt: skip
        got = out.copy()
    z, y = rows[:, :96].astype(float), rows[:, 100:196].astype(float)
    both = (z * sigmoid(z) * y).reshape(5, groups, -1)
    expected = both / np.sqrt((both**2).mean(2, keepdims=True) + 1e-5)
    assert np.abs(got - expected.reshape(5, 96) * w).max() < 1e-5
