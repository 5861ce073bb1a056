"""What the ops of the delta rule and of gates touch at most, see `runtime.plan.extents`.

States are not of the plan's memory: their addresses come with each run.
"""

from runtime.kernels import delta, gates
from runtime.kernels.simd import LANES
from runtime.plan.extents import Sizes, Span, Spans, touches


@touches(delta.l2_heads)
def _l2_heads(s: Sizes, x: int, ldx: int, heads: int, d: int, eps: int, scaled: int, scale: int) -> Spans:
    yield s.rows("x", x, ldx, heads * d)


@touches(delta.delta_gates)
def _delta_gates(
    s: Sizes, beta: int, alpha: int, ld: int, heads: int, group: int, stride: int, rate: int, dt: int,
    out: int, ldo: int, decay: int,
) -> Spans:  # fmt: skip
    last = (heads - 1) // group * stride + 4 * ((heads - 1) % group + 1)
    for name, address in (("beta", beta), ("alpha", alpha)):
        yield Span(name, address, (s.n_ubatch - 1) * ld + last)
    yield _vector("a", rate, heads)
    yield _vector("dt", dt, heads)
    yield s.rows("gates", out, ldo, decay // 4 + heads)


@touches(delta.channel_gates)
def _channel_gates(
    s: Sizes, beta: int, ldb: int, f: int, ldf: int, k: int, ldk: int, heads: int, d: int, rate: int, dt: int,
    out: int, ldo: int, decay: int,
) -> Spans:  # fmt: skip
    yield s.rows("beta", beta, ldb, heads)
    yield s.rows("f", f, ldf, heads * d)
    yield s.rows("k", k, ldk, heads * d)
    yield _vector("a", rate, heads)
    yield _vector("dt", dt, heads * d)
    yield s.rows("gates", out, ldo, decay // 4 + 2 * heads * d)


@touches(delta.delta_rule)
def _delta_rule(
    s: Sizes, x: int, ldx: int, k_heads: int, sharing: int, v_heads: int, d: int, g: int, ldg: int,
    decay: int, out: int, ldo: int, state: int,
) -> Spans:  # fmt: skip
    yield s.rows("x", x, ldx, (2 * k_heads + v_heads) * d)
    yield s.rows("gates", g, ldg, decay // 4 + v_heads)
    yield s.rows("out", out, ldo, v_heads * d)


@touches(delta.delta_rule_channels)
def _delta_rule_channels(
    s: Sizes, x: int, ldx: int, k_heads: int, sharing: int, v_heads: int, d: int, g: int, ldg: int,
    decay: int, out: int, ldo: int, state: int,
) -> Spans:  # fmt: skip
    yield from _delta_rule(s, x, ldx, k_heads, sharing, v_heads, d, g, ldg, decay, out, ldo, state)
    yield s.rows("gates", g, ldg, decay // 4 + 2 * v_heads * d)


@touches(gates.part_heads)
def _part_heads(s: Sizes, x: int, ldx: int, heads: int, d: int) -> Spans:
    yield s.rows("x", x, ldx, 2 * heads * d)


@touches(gates.gate_quant)
def _gate_quant(
    s: Sizes, x: int, ldx: int, n: int, gate: int, ldg: int, function: int, dst: int, kind: int
) -> Spans:
    yield s.rows("x", x, ldx, n)
    yield s.rows("gate", gate, ldg, n)
    yield s.tiles("dst", dst, kind, n)


@touches(gates.norm_gate_quant)
def _norm_gate_quant(
    s: Sizes, x: int, ldx: int, heads: int, d: int, weight: int, eps: int, gate: int, ldg: int, function: int,
    dst: int, kind: int,
) -> Spans:  # fmt: skip
    yield _vector("weight", weight, d)
    yield from _gate_quant(s, x, ldx, heads * d, gate, ldg, function, dst, kind)


def _vector(name: str, address: int, n: int) -> Span:
    return Span(name, address, -(-n // LANES) * LANES * 4)
