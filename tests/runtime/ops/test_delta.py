"""The gated delta rule and what surrounds it against float64 numpy, and its bits under every schedule."""

from dataclasses import dataclass

import numpy as np
import pytest

from runtime.kernels import delta, gates
from runtime.kernels.job import f32_bits
from runtime.kernels.quantise import A_F32
from tests.runtime.ops.harness import Bench, bench
from tests.runtime.ops.recurrences import alone, assert_bits_depend_on_the_sequence_alone
from tests.runtime.ops.test_rows import draw, gelu, sigmoid, silu

EPS = 1e-6


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def recurrence(state: np.ndarray, q, k, v, beta, e) -> np.ndarray:
    """Outputs [n, D] of tokens of one head; state [Dk, Dv] is advanced; e is [n] or [n, Dk]."""
    out = []
    for t in range(len(q)):
        state *= e[t] if e.ndim == 1 else e[t][:, None]
        state += np.outer(k[t], beta[t] * (v[t] - state.T @ k[t]))
        out.append(state.T @ q[t])
    return np.array(out)


@dataclass(frozen=True)
class Layer:
    """Sizes of a delta layer. A row of inputs is q, k and v heads, beta up to 16, decays, decayed keys."""

    k_heads: int
    v_heads: int
    d: int
    sharing: int = 1
    per_channel: bool = False

    @property
    def n_state(self) -> int:
        return self.v_heads * self.d * self.d

    @property
    def width(self) -> int:
        return self.v_heads * self.d

    @property
    def key_heads(self) -> np.ndarray:
        """The key head of each value head."""
        return np.arange(self.v_heads) // self.sharing % self.k_heads

    def inputs(self, seed: int, n: int = 130) -> np.ndarray:
        x = draw(n, 2 * self.k_heads + self.v_heads, self.d, seed=seed)
        x[:, : 2 * self.k_heads] /= np.linalg.norm(x[:, : 2 * self.k_heads], axis=2, keepdims=True)
        beta = np.zeros((n, 16), np.float32)
        beta[:, : self.v_heads] = sigmoid(draw(n, self.v_heads, seed=seed + 100))
        shape = (n, self.v_heads, self.d) if self.per_channel else (n, 16)
        e = np.exp(-softplus(draw(*shape, seed=seed + 200))).astype(np.float32)
        parts = [x, beta, e]
        if self.per_channel:
            parts.append(e * x[:, self.k_heads + self.key_heads])
        return np.concatenate([part.reshape(n, -1) for part in parts], axis=1)

    def head(self, inputs: np.ndarray, h: int) -> tuple[np.ndarray, ...]:
        """q, k, v, beta and e of a value head, float64."""
        n_heads = 2 * self.k_heads + self.v_heads
        x, beta, e, *_ = np.split(
            inputs.astype(float), np.cumsum([n_heads * self.d, 16, self.width if self.per_channel else 16]), 1
        )
        x, i = x.reshape(len(x), n_heads, self.d), self.key_heads[h]
        e = e.reshape(len(x), -1, self.d)[:, h] if self.per_channel else e[:, h]
        return x[:, i], x[:, self.k_heads + i], x[:, 2 * self.k_heads + h], beta[:, h], e

    def emit(self, b: Bench, x: np.ndarray, out: np.ndarray) -> None:
        op = delta.delta_rule_channels if self.per_channel else delta.delta_rule
        gates = x.ctypes.data + 4 * (2 * self.k_heads + self.v_heads) * self.d
        ld = 4 * x.shape[1]
        b.run(op, x.ctypes.data, ld, self.k_heads, self.sharing, self.v_heads, self.d, gates, ld, 64,
              out.ctypes.data, 4 * self.width, 0)  # fmt: skip


LAYERS = [
    pytest.param(Layer(2, 4, 16), id="heads share by modulus"),
    pytest.param(Layer(2, 4, 32, sharing=2), id="heads share in groups"),
    pytest.param(Layer(1, 3, 48), id="an odd number of slices"),
    pytest.param(Layer(2, 2, 64), id="pairs of slices"),
    pytest.param(Layer(2, 2, 32, per_channel=True), id="decay per channel"),
    pytest.param(Layer(3, 3, 16, per_channel=True), id="decay per channel, one slice"),
]


@pytest.mark.parametrize("layer", LAYERS)
def test_the_delta_rule_equals_its_recurrence(layer: Layer) -> None:
    inputs, d = layer.inputs(0), layer.d
    out, state = alone(layer.emit, inputs, layer.n_state, layer.width)
    states = state.reshape(layer.v_heads, d // 16, d, 16).transpose(0, 2, 1, 3).reshape(-1, d, d)
    for h in range(layer.v_heads):
        matrix = np.zeros((d, d))
        expected = recurrence(matrix, *layer.head(inputs, h))
        assert np.abs(out[:, h * d : (h + 1) * d] - expected).max() < 1e-5
        assert np.abs(states[h] - matrix).max() < 1e-5


@pytest.mark.parametrize("layer", LAYERS)
def test_the_delta_rule_has_the_same_bits_in_every_schedule(layer: Layer) -> None:
    assert_bits_depend_on_the_sequence_alone(layer.emit, layer.inputs, layer.n_state, layer.width)


def test_heads_are_divided_by_their_length() -> None:
    x = 3 * draw(5, 4 * 32 + 16)
    with bench() as b:
        out = b.array(x)
        b.rows(5)
        b.run(delta.l2_heads, out.ctypes.data, 4 * x.shape[1], 4, 32, f32_bits(EPS), 1, f32_bits(0.25))
        got = out.copy()
    heads = x[:, :128].astype(float).reshape(5, 4, 32)
    expected = heads / np.sqrt((heads**2).sum(2, keepdims=True) + EPS)
    expected[:, 0] *= 0.25
    assert np.abs(got[:, :128].reshape(5, 4, 32) - expected).max() < 1e-6
    assert np.array_equal(got[:, 128:], x[:, 128:])


@pytest.mark.parametrize(("group", "stride"), [(6, 999), (3, 6), (2, 4)])
def test_gates_of_heads_may_lie_in_groups(group: int, stride: int) -> None:
    """beta and alpha of 6 heads apart, or side by side in groups."""
    n, heads = 5, 6
    beta, alpha, dt = draw(n, heads), 3 * draw(n, heads, seed=1), draw(heads, seed=2)
    a = -np.exp(draw(heads, seed=3))
    lines, offset = np.concatenate([beta, alpha], 1), heads
    if group < heads:
        parts = [side.reshape(n, -1, group) for side in (beta, alpha)]
        lines, offset = np.concatenate(parts, 2).reshape(n, -1), group
    with bench() as b:
        source, out = b.array(np.pad(lines, ((0, 0), (0, 20)))), b.array(np.zeros((n, 32)))
        rate, bias = b.array(np.pad(a, (0, 10))), b.array(np.pad(dt, (0, 10)))
        b.rows(n)
        at = source.ctypes.data
        b.run(delta.delta_gates, at, at + 4 * offset, 4 * source.shape[1], heads, group, 4 * stride,
              rate.ctypes.data, bias.ctypes.data, out.ctypes.data, 128, 64)  # fmt: skip
        got = out.copy()
    assert np.abs(got[:, :heads] - sigmoid(beta.astype(float))).max() < 1e-6
    decay = np.exp(a.astype(float) * softplus(alpha.astype(float) + dt))
    assert np.abs(got[:, 16 : 16 + heads] - decay).max() < 1e-6


def test_gates_of_channels_come_with_the_decayed_key() -> None:
    n, heads, d = 5, 3, 16
    beta, f, k = draw(n, 16), 3 * draw(n, heads * d, seed=1), draw(n, heads * d, seed=2)
    a, dt = -np.exp(draw(heads, seed=3)), draw(heads * d, seed=4)
    with bench() as b:
        gates_in, source, keys, out = b.array(beta), b.array(f), b.array(k), b.array(np.zeros((n, 16 + 96)))
        rate, bias = b.array(a), b.array(dt)
        b.rows(n)
        b.run(delta.channel_gates, gates_in.ctypes.data, 64, source.ctypes.data, 192, keys.ctypes.data, 192,
              heads, d, rate.ctypes.data, bias.ctypes.data, out.ctypes.data, 4 * 112, 64)  # fmt: skip
        got = out.copy()
    e = np.exp(np.repeat(a.astype(float), d) * softplus(f.astype(float) + dt))
    assert np.abs(got[:, :heads] - sigmoid(beta[:, :heads].astype(float))).max() < 1e-6
    assert np.abs(got[:, 16:64] - e).max() < 1e-6
    assert np.abs(got[:, 64:] - e * k).max() < 2e-6


def test_gates_between_query_heads_are_parted_from_them() -> None:
    x = draw(3, 2 * 3 * 16 + 32)
    with bench() as b:
        out = b.array(x)
        b.rows(3)
        b.run(gates.part_heads, out.ctypes.data, 4 * x.shape[1], 3, 16)
        got = out.copy()
    pairs = x[:, :96].reshape(3, 3, 2, 16)
    assert np.array_equal(got[:, :48], pairs[:, :, 1].reshape(3, 48))
    assert np.array_equal(got[:, 48:96], pairs[:, :, 0].reshape(3, 48))
    assert np.array_equal(got[:, 96:], x[:, 96:])


@pytest.mark.parametrize(
    ("function", "formula"),
    [(gates.SIGMOID, sigmoid), (gates.SILU, silu), (gates.GELU, gelu), (gates.PLAIN, lambda x: x)],
)
def test_results_are_gated_before_they_are_quantised(function: int, formula) -> None:
    x, gate, w = draw(1, 96), draw(1, 96, seed=1), draw(32, seed=2)
    with bench() as b:
        source, g, weight = b.array(x), b.array(gate), b.array(w)
        plain, normed = b.array(np.zeros(96)), b.array(np.zeros(96))
        b.rows(1)
        b.run(gates.gate_quant, source.ctypes.data, 384, 96, g.ctypes.data, 384, function, plain.ctypes.data,
              A_F32)  # fmt: skip
        b.run(gates.norm_gate_quant, source.ctypes.data, 384, 3, 32, weight.ctypes.data, f32_bits(EPS),
              g.ctypes.data, 384, function, normed.ctypes.data, A_F32)  # fmt: skip
        got = plain.copy(), normed.copy()
    heads = x.astype(float).reshape(3, 32)
    expected = heads / np.sqrt((heads**2).mean(1, keepdims=True) + EPS) * w
    assert np.abs(got[0] - (x * formula(gate.astype(float)))[0]).max() < 1e-6
    assert np.abs(got[1] - (expected.reshape(96) * formula(gate.astype(float)))).max() < 1e-5
