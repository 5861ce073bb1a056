"""Norms, activations, gates and positions against float64 numpy."""

import numpy as np
import pytest

from runtime.kernels import activations as act
from runtime.kernels import job, norms, positions, rows
from runtime.kernels.job import f32_bits
from runtime.kernels.quantise import A_F32
from runtime.kernels.rope import NEOX, NORM, rope_table
from tests.runtime.ops.harness import Bench, bench

N, WIDTH, EPS = 5, 48, 1e-5


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def normed(b: Bench, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, kind: int) -> np.ndarray:
    source, weight, out = b.array(x), b.array(w), b.array(np.zeros_like(x))
    shift = 0 if bias is None else b.array(bias).ctypes.data
    b.rows(len(x))
    b.run(norms.norm_rows, source.ctypes.data, 4 * WIDTH, weight.ctypes.data, shift, WIDTH, f32_bits(EPS),
          kind, out.ctypes.data, 4 * WIDTH, job.ROWS)  # fmt: skip
    return out.copy()


def test_norms_equal_their_formulas() -> None:
    x, w, bias = 3 + draw(N, WIDTH), draw(WIDTH, seed=1), draw(WIDTH, seed=2)
    exact = x.astype(float)
    centred = exact - exact.mean(1, keepdims=True)
    with bench() as b:
        rms = normed(b, x, w, None, norms.RMS)
        plain, shifted = normed(b, x, w, None, norms.LAYER), normed(b, x, w, bias, norms.LAYER)
    assert np.abs(rms - exact / np.sqrt((exact**2).mean(1, keepdims=True) + EPS) * w).max() < 1e-5
    layer = centred / np.sqrt((centred**2).mean(1, keepdims=True) + EPS) * w
    assert np.abs(plain - layer).max() < 1e-5
    assert np.abs(shifted - (layer + bias)).max() < 1e-5


def test_a_norm_is_added_to_the_residual() -> None:
    x, residual, w = draw(N, WIDTH), draw(N, WIDTH, seed=1), draw(WIDTH, seed=2)
    exact = x.astype(float)
    with bench() as b:
        source, out, weight = b.array(x), b.array(residual), b.array(w)
        b.rows(N)
        b.run(norms.norm_add, source.ctypes.data, 4 * WIDTH, weight.ctypes.data, WIDTH, f32_bits(EPS),
              out.ctypes.data, 4 * WIDTH, job.ROWS)  # fmt: skip
        got = out.copy()
    expected = residual + exact / np.sqrt((exact**2).mean(1, keepdims=True) + EPS) * w
    assert np.abs(got - expected).max() < 1e-5


def test_head_norms_may_differ_in_width_between_queries_and_keys() -> None:
    x, wq, wk = draw(N, 96), draw(32, seed=1), draw(16, seed=2)
    with bench() as b:
        out, q, k = b.array(x), b.array(wq), b.array(wk)
        b.rows(N)
        b.run(norms.head_norm, out.ctypes.data, 4 * 96, 2, 32, q.ctypes.data, 1, 16, k.ctypes.data,
              f32_bits(EPS), job.ROWS)  # fmt: skip
        got = out.copy()
    for part, w in ((slice(0, 32), wq), (slice(32, 64), wq), (slice(64, 80), wk)):
        exact = x[:, part].astype(float)
        expected = exact / np.sqrt((exact**2).mean(1, keepdims=True) + EPS) * w
        assert np.abs(got[:, part] - expected).max() < 1e-5
    assert np.array_equal(got[:, 80:], x[:, 80:])


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        (act.SILU_GATE, lambda g, u: silu(g) * u),
        (act.GELU_GATE, lambda g, u: gelu(g) * u),
        (act.SILU_GATE_CAPPED, lambda g, u: np.minimum(silu(g), 0.7) * np.clip(u, -0.7, 0.7)),
        (
            act.SILU_GATE_CLAMPED,
            lambda g, u: silu(np.minimum(g, np.float32(0.7))) * np.clip(u, -0.7, 0.7),
        ),
        (
            act.SIGMOID_GATE_CAPPED,
            lambda g, u: (
                np.minimum(g, 0.7) * sigmoid(1.702 * np.minimum(g, 0.7)) * (np.clip(u, -0.7, 0.7) + 1)
            ),
        ),
        (act.GELU, lambda g, u: gelu(g)),
        (act.RELU_SQUARED, lambda g, u: np.maximum(g, 0) ** 2),
        (act.TANH, lambda g, u: np.tanh(g)),
        (act.SIGMOID, lambda g, u: sigmoid(g)),
    ],
)
def test_activations_equal_their_formulas(kind: int, formula) -> None:
    x = 4 * draw(1, 2 * WIDTH)
    with bench() as b:
        source, out = b.array(x), b.array(np.zeros(WIDTH))
        b.rows(1)
        b.run(act.activate_quant, source.ctypes.data, 8 * WIDTH, 4 * WIDTH, WIDTH, kind, f32_bits(0.7),
              out.ctypes.data, A_F32, job.ROWS)  # fmt: skip
        got = out.copy()
    gate, up = x[0].astype(float).reshape(2, WIDTH)
    assert np.abs(got - formula(gate, up)).max() < 1e-5


def test_gates_of_rows_and_heads_are_sigmoids() -> None:
    x, y, source, w, gates = (
        draw(N, WIDTH),
        draw(N, WIDTH, seed=1),
        draw(N, 32, seed=2),
        draw(32, seed=3),
        draw(N, 16),
    )
    with bench() as b:
        out, heads = b.array(x), b.array(x)
        branch, inputs, weight, g = b.array(y), b.array(source), b.array(w), b.array(gates)
        b.rows(N)
        b.run(rows.add_gated, out.ctypes.data, 4 * WIDTH, branch.ctypes.data, 4 * WIDTH, WIDTH,
              inputs.ctypes.data, 128, weight.ctypes.data, 32, job.ROWS)  # fmt: skip
        b.run(rows.gate_heads, heads.ctypes.data, 4 * WIDTH, 3, 16, g.ctypes.data, 64, job.ROWS)
        added, gated = out.copy(), heads.copy()
    assert np.abs(added - (x + sigmoid(source.astype(float) @ w)[:, None] * y)).max() < 1e-5
    assert np.abs(gated - x * np.repeat(sigmoid(gates[:, :3].astype(float)), 16, axis=1)).max() < 1e-6


def test_queries_are_tempered_by_the_logarithm_of_their_position() -> None:
    at = [0, 31, 32, 1000, 131071]
    x = draw(len(at), WIDTH)
    with bench() as b:
        out = b.array(x)
        b.rows(len(at), at)
        b.run(positions.temper_queries, out.ctypes.data, 4 * WIDTH, 32, f32_bits(0.1), 32, 1)
        got = out.copy()
    factor = 1 + 0.1 * np.log(1 + (np.array(at) + 1) // 32)
    assert np.abs(got[:, :32] - x[:, :32] * factor[:, None]).max() < 1e-6
    assert np.array_equal(got[:, 32:], x[:, 32:])
    assert np.array_equal(got[0], x[0])


def test_learned_positions_are_added_by_absolute_position() -> None:
    x, table, at = draw(3, WIDTH), draw(10, WIDTH, seed=1), [9, 0, 4]
    with bench() as b:
        out, lines = b.array(x), b.array(table)
        b.rows(3, at)
        b.run(positions.add_positions, out.ctypes.data, 4 * WIDTH, lines.ctypes.data, WIDTH)
        got = out.copy()
    assert np.array_equal(got, x + table[at])


@pytest.mark.parametrize("pairing", [NORM, NEOX])
def test_some_columns_of_each_head_turn_by_their_position(pairing: int) -> None:
    at, d, n_rot = [0, 3, 4000], 24, 16
    x, turns = draw(3, 2 * d + 8), 500.0 ** (-np.arange(n_rot // 2) / 8)
    with bench() as b:
        out, frequencies = b.array(x), b.array(turns, np.float64)
        table = b.array(np.zeros((3, 2 * n_rot)))
        b.rows(3, at)
        b.run(rope_table, frequencies.ctypes.data, n_rot // 2, pairing, f32_bits(1.5), table.ctypes.data,
              8 * n_rot)  # fmt: skip
        b.run(positions.rotate_heads, out.ctypes.data, 4 * x.shape[1], 2, d, table.ctypes.data, 8 * n_rot,
              n_rot, pairing)  # fmt: skip
        got = out.copy()
    expected = x.astype(float)
    heads = expected[:, : 2 * d].reshape(3, 2, d)
    first, second = (
        (slice(0, n_rot, 2), slice(1, n_rot, 2))
        if pairing == NORM
        else (slice(0, n_rot // 2), slice(n_rot // 2, n_rot))
    )
    angle = np.array(at)[:, None, None] * turns
    turned = (heads[..., first] + 1j * heads[..., second]) * 1.5 * np.exp(1j * angle)
    heads[..., first], heads[..., second] = turned.real, turned.imag
    assert np.abs(got - expected).max() < 1e-5


def test_rows_or_one_line_for_all_are_added_with_a_factor() -> None:
    x, y = draw(N, WIDTH), draw(N, WIDTH, seed=1)
    with bench() as b:
        each, alike, lines = b.array(x), b.array(x), b.array(y)
        b.rows(N)
        for out, ld in ((each, 4 * WIDTH), (alike, 0)):
            b.run(rows.add_rows, out.ctypes.data, 4 * WIDTH, lines.ctypes.data, ld, 32, f32_bits(0.3),
                  job.ROWS)  # fmt: skip
        got = each.copy(), alike.copy()
    factor = np.float32(0.3).astype(float)
    assert np.abs(got[0][:, :32] - (x + factor * y)[:, :32]).max() < 1e-6
    assert np.abs(got[1][:, :32] - (x + factor * y[0])[:, :32]).max() < 1e-6
    assert np.array_equal(got[0][:, 32:], x[:, 32:]) and np.array_equal(got[1][:, 32:], x[:, 32:])


def test_rows_that_want_logits_are_gathered_in_their_order() -> None:
    x, wanted = draw(7, WIDTH), [6, 0, 3, 3, 5]
    with bench() as b:
        source, index, out = b.array(x), b.array(wanted, np.int64), b.array(np.zeros((len(wanted), WIDTH)))
        b.rows(7)
        b.vars[[job.OUT_ROWS, job.OUT_INDEX]] = len(wanted), index.ctypes.data
        b.run(rows.gather_out, source.ctypes.data, 4 * WIDTH, WIDTH, out.ctypes.data, 4 * WIDTH)
        got = out.copy()
    assert np.array_equal(got, x[wanted])


def test_rows_are_cleared_of_whatever_they_held() -> None:
    with bench() as b:
        out = b.array(np.full((3, WIDTH), np.nan))
        b.rows(2)
        b.run(rows.clear_rows, out.ctypes.data, 4 * WIDTH, 32, job.ROWS)
        got = out.copy()
    assert not got[:2, :32].any()
    assert np.isnan(got[2]).all() and np.isnan(got[:, 32:]).all()


def test_logits_are_scaled_and_then_capped() -> None:
    x = 10 * draw(2, 5000)
    with bench() as b:
        scaled, capped = b.array(x), b.array(x)
        b.rows(2)
        b.run(
            rows.shape_logits, scaled.ctypes.data, 4 * 5000, 4992, f32_bits(0.5), f32_bits(0.0), job.OUT_ROWS
        )
        b.run(
            rows.shape_logits, capped.ctypes.data, 4 * 5000, 4992, f32_bits(0.5), f32_bits(3.0), job.OUT_ROWS
        )
        got = scaled[:, :4992].copy(), capped[:, :4992].copy()
    assert np.array_equal(got[0], x[:, :4992] * np.float32(0.5))
    assert np.abs(got[1] - 3 * np.tanh(0.5 * x[:, :4992].astype(float) / 3)).max() < 1e-5
