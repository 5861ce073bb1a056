"""RWKV 7's token shift and time mix against float64 numpy, in every schedule."""

import numpy as np
import pytest

from runtime.kernels import wkv
from runtime.kernels.job import f32_bits
from runtime.kernels.quantise import A_F32, WIDTHS
from tests.runtime.ops.harness import Bench
from tests.runtime.ops.recurrences import Emit, alone, assert_bits_depend_on_the_sequence_alone

T, HEADS, D, EPS = 100, 3, 32, 64e-5
N = HEADS * D
ROWS = ("R", "W", "K", "V", "RATE", "GATE", "MIX", "FIRST")
VECTORS = ("W0", "A0", "V0", "K_K", "K_A", "R_K", "LN", "LN_BIAS")


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def vector(name: str) -> np.ndarray:
    return draw(N, seed=10 + VECTORS.index(name))


def op(mixed: bool) -> Emit:
    """Rows of x: one part of N floats for each of `ROWS`; without mixing as in layer 0."""

    def emit(b: Bench, x: np.ndarray, out: np.ndarray) -> None:
        words = b.array(np.zeros(wkv.M_WORDS), np.int64)
        vectors = {name: b.array(vector(name)) for name in VECTORS}
        for i, name in enumerate(ROWS if mixed else ROWS[:6]):
            words[getattr(wkv, f"M_{name}")] = x.ctypes.data + 4 * N * i
        for name, values in vectors.items():
            words[getattr(wkv, f"M_{name}")] = values.ctypes.data
        whole = b.array(np.zeros_like(x))
        words[[wkv.M_OUT, wkv.M_LD, wkv.M_HEADS, wkv.M_D, wkv.M_EPS]] = [
            whole.ctypes.data, 4 * x.shape[1], HEADS, D, f32_bits(EPS),
        ]  # fmt: skip
        b.run(wkv.mix_heads, words.ctypes.data)
        out[:] = whole[:, :N]

    return emit


def formula(x: np.ndarray, mixed: bool) -> np.ndarray:
    parts = {name: x[:, i * N : (i + 1) * N].astype(float) for i, name in enumerate(ROWS)}
    of = {name: vector(name).astype(float) for name in VECTORS}
    r, k, v = parts["R"], parts["K"], parts["V"]
    w = np.exp(-0.606531 * sigmoid(parts["W"] + of["W0"]))
    rate = sigmoid(parts["RATE"] + of["A0"])
    if mixed:
        v = v + (parts["FIRST"] - v) * sigmoid(parts["MIX"] + of["V0"])
    kk = (k * of["K_K"]).reshape(T, HEADS, D)
    kk = kk / np.linalg.norm(kk, axis=2, keepdims=True)
    k = k * (1 + (rate - 1) * of["K_A"])
    r, w, k, v, rate = (part.reshape(T, HEADS, D) for part in (r, w, k, v, rate))
    s, out = np.zeros((HEADS, D, D)), []
    for t in range(T):
        removed = s @ kk[t][:, :, None]
        s = (
            s * w[t][:, None, :]
            - removed * (kk[t] * rate[t])[:, None, :]
            + v[t][:, :, None] * k[t][:, None, :]
        )
        y = (s @ r[t][:, :, None])[:, :, 0]
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + EPS)
        y = y * of["LN"].reshape(HEADS, D) + of["LN_BIAS"].reshape(HEADS, D)
        y = y + v[t] * (k[t] * r[t] * of["R_K"].reshape(HEADS, D)).sum(1, keepdims=True)
        out.append(y.reshape(N) * parts["GATE"][t])
    return np.array(out)


@pytest.mark.parametrize("mixed", [False, True])
def test_time_mixes_equal_their_formula(mixed: bool) -> None:
    x = draw(T, len(ROWS) * N)
    got, _ = alone(op(mixed), x, N * D, N)
    expected = formula(x, mixed)
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()


def test_bits_of_time_mixes_depend_on_the_sequence_alone() -> None:
    assert_bits_depend_on_the_sequence_alone(
        op(mixed=True), lambda seed: draw(T, len(ROWS) * N, seed=seed), N * D, N
    )


def test_a_key_of_zeros_removes_nothing() -> None:
    x = draw(T, len(ROWS) * N)
    x[5, 2 * N : 3 * N] = 0
    got, state = alone(op(mixed=False), x, N * D, N)
    assert np.isfinite(got).all() and np.isfinite(state).all()


def shift(b: Bench, x: np.ndarray, out: np.ndarray) -> None:
    lerp, tiles = b.array(draw(N, seed=1)), b.array(np.zeros((len(x), N)))
    b.run(wkv.shift_quant, x.ctypes.data, 4 * N, N, lerp.ctypes.data, tiles.ctypes.data, A_F32, 0)
    out[:] = untiled(tiles, len(x))


def untiled(tiles: np.ndarray, rows: int) -> np.ndarray:
    """Floats [rows, N] from column tiles ``[N / 16][columns][16]`` of as many columns as fit."""
    flat, out, at = tiles.reshape(-1), [], 0
    while at < rows:
        width = next(w for w in WIDTHS if w <= rows - at)
        tile = flat[at * N : (at + width) * N].reshape(N // 16, width, 16)
        out.append(tile.transpose(1, 0, 2).reshape(width, N))
        at += width
    return np.concatenate(out)


def test_rows_are_shifted_towards_their_predecessors() -> None:
    x = draw(T, N)
    got, state = alone(shift, x, N, N)
    exact = x.astype(float)
    before = np.concatenate([np.zeros((1, N)), exact[:-1]])
    assert np.abs(got - (exact + (before - exact) * draw(N, seed=1))).max() < 1e-5
    assert np.array_equal(state, x[-1])


def test_bits_of_shifts_depend_on_the_sequence_alone() -> None:
    assert_bits_depend_on_the_sequence_alone(shift, lambda seed: draw(T, N, seed=seed), N, N)
