"""What each op touches at most, from its parameters: how checked mode knows a wrong address.

A function here has the parameters of its op and yields the spans of memory the op may read or write in the
largest step the plan allows. An op that is not listed is refused in checked mode.
"""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runtime.kernels import activations, experts, job, norms, positions, routing
from runtime.kernels import attention_layer as al
from runtime.kernels import rows as row_ops
from runtime.kernels.attention import attention, attention_combine, partial_bytes
from runtime.kernels.formats import FORMATS
from runtime.kernels.kvstore import rotate_and_store, rotate_back
from runtime.kernels.kvtypes import KV_TYPES
from runtime.kernels.quantise import act_bytes
from runtime.kernels.rope import rope_table
from runtime.kernels.simd import LANES
from runtime.kernels.tape import Op
from runtime.kernels.unpacked import matmul_unpacked

GATED = (
    activations.SILU_GATE,
    activations.GELU_GATE,
    activations.SILU_GATE_CAPPED,
    activations.SILU_GATE_CLAMPED,
    activations.SIGMOID_GATE_CAPPED,
)


@dataclass(frozen=True, slots=True)
class Span:
    """`n_bytes` at the address that the parameter `name` holds or leads to."""

    name: str
    address: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """The largest step of a plan."""

    n_ubatch: int
    max_outputs: int
    max_runs: int
    n_positions: int
    n_vocab: int

    def count(self, variable: int) -> int:
        """The most a job variable that counts rows can be. KeyError for other variables."""
        return {job.ROWS: self.n_ubatch, job.OUT_ROWS: self.max_outputs}[variable]

    def rows(self, name: str, address: int, ld: int, width: int, variable: int = job.ROWS) -> Span:
        """f32 rows, of whole vectors, `ld` bytes apart."""
        return Span(name, address, (self.count(variable) - 1) * ld + _f32(width))

    def tiles(self, name: str, address: int, kind: int, k: int, variable: int = job.ROWS) -> Span:
        return Span(name, address, self.count(variable) * act_bytes(kind, k))


Spans = Iterator[Span]
Extent = Callable[..., Spans]
EXTENTS: dict[Op, Extent] = {}


def extent(op: Op) -> Extent | None:
    """The function for an op, if there is one."""
    known = EXTENTS.get(op)
    if known is None and _type_name(op) in FORMATS:
        return _embed if op is FORMATS[_type_name(op)].module.embed else _matmul(_type_name(op))
    return known


def _type_name(op: Op) -> str:
    """The weight type whose module the op is from."""
    return op.name.partition(".")[0].upper()


def touches(*ops: Op) -> Callable[[Extent], Extent]:
    """Registers the function for these ops."""

    def register(function: Extent) -> Extent:
        EXTENTS.update(dict.fromkeys(ops, function))
        return function

    return register


def _f32(n: int) -> int:
    """Bytes of n floats in whole vectors."""
    return -(-n // LANES) * LANES * 4


def words_at(address: int, n: int) -> list[int]:
    """The int64 words of a descriptor."""
    return list((ctypes.c_int64 * n).from_address(address))


def _embed(
    s: Sizes, table: int, row_bytes: int, k: int, ids: int, out: int, ldo: int, scale: int, rows: int
) -> Spans:
    yield Span("table", table, s.n_vocab * row_bytes)
    yield Span("ids", ids, 4 * s.count(rows))
    yield s.rows("out", out, ldo, k, rows)


def _product(
    s: Sizes, kind: int, n_panels: int, x: int, k: int, out: int, ldo: int, residual: int, rows: int
) -> Spans:
    yield s.tiles("x", x, kind, k, rows)
    yield s.rows("out", out, ldo, LANES * n_panels, rows)
    if residual:
        yield s.rows("residual", residual, ldo, LANES * n_panels, rows)


def _matmul(type_name: str) -> Extent:
    fmt = FORMATS[type_name]

    def spans(
        s: Sizes, w: int, n_panels: int, x: int, k: int, out: int, ldo: int, residual: int, rows: int
    ) -> Spans:
        yield Span("panels", w, n_panels * fmt.panel_bytes(k))
        yield from _product(s, fmt.act_kind, n_panels, x, k, out, ldo, residual, rows)

    return spans


@touches(matmul_unpacked)
def _matmul_unpacked(
    s: Sizes, w: int, n_panels: int, x: int, k: int, out: int, ldo: int, residual: int, rows: int,
    op: Op, pack: object, n_rows: int, panel_bytes: int,
) -> Spans:  # fmt: skip
    fmt = FORMATS[_type_name(op)]
    yield Span("weights", w, n_rows * fmt.row_bytes(k))
    yield from _product(s, fmt.act_kind, n_panels, x, k, out, ldo, residual, rows)


@touches(row_ops.quant)
def _quant(s: Sizes, x: int, ldx: int, n: int, dst: int, kind: int, rows: int) -> Spans:
    yield s.rows("x", x, ldx, n, rows)
    yield s.tiles("dst", dst, kind, n, rows)


@touches(row_ops.add_rows)
def _add_rows(s: Sizes, x: int, ldx: int, lines: int, ldl: int, n: int, scale: int, rows: int) -> Spans:
    yield s.rows("x", x, ldx, n, rows)
    yield s.rows("lines", lines, ldl, n, rows)


@touches(row_ops.add_gated)
def _add_gated(
    s: Sizes,
    x: int,
    ldx: int,
    y: int,
    ldy: int,
    n: int,
    source: int,
    lds: int,
    weight: int,
    k: int,
    rows: int,
) -> Spans:
    yield s.rows("x", x, ldx, n, rows)
    yield s.rows("y", y, ldy, n, rows)
    yield s.rows("in", source, lds, k, rows)
    yield Span("weight", weight, _f32(k))


@touches(row_ops.gate_heads)
def _gate_heads(s: Sizes, x: int, ldx: int, heads: int, d: int, gates: int, ldg: int, rows: int) -> Spans:
    yield s.rows("x", x, ldx, heads * d, rows)
    yield s.rows("gates", gates, ldg, heads, rows)


@touches(row_ops.clear_rows)
def _clear_rows(s: Sizes, x: int, ldx: int, n: int, rows: int) -> Spans:
    yield s.rows("x", x, ldx, n, rows)


@touches(row_ops.gather_out)
def _gather_out(s: Sizes, x: int, ldx: int, n: int, out: int, ldo: int) -> Spans:
    yield s.rows("x", x, ldx, n)
    yield s.rows("out", out, ldo, n, job.OUT_ROWS)


@touches(row_ops.shape_logits)
def _shape_logits(s: Sizes, x: int, ldx: int, n: int, scale: int, cap: int, rows: int) -> Spans:
    yield s.rows("x", x, ldx, n, rows)


@touches(norms.norm_quant)
def _norm_quant(
    s: Sizes, x: int, ldx: int, weight: int, bias: int, n: int, eps: int, norm: int, dst: int, kind: int,
    rows: int,
) -> Spans:  # fmt: skip
    yield from _norm(s, x, ldx, weight, bias, n, rows)
    yield s.tiles("dst", dst, kind, n, rows)


@touches(norms.norm_rows)
def _norm_rows(
    s: Sizes, x: int, ldx: int, weight: int, bias: int, n: int, eps: int, norm: int, out: int, ldo: int,
    rows: int,
) -> Spans:  # fmt: skip
    yield from _norm(s, x, ldx, weight, bias, n, rows)
    yield s.rows("out", out, ldo, n, rows)


def _norm(s: Sizes, x: int, ldx: int, weight: int, bias: int, n: int, rows: int) -> Spans:
    yield s.rows("x", x, ldx, n, rows)
    yield Span("weight", weight, _f32(n))
    if bias:
        yield Span("bias", bias, _f32(n))


@touches(norms.norm_add)
def _norm_add(
    s: Sizes, x: int, ldx: int, weight: int, n: int, eps: int, residual: int, ldr: int, rows: int
) -> Spans:
    yield from _norm(s, x, ldx, weight, 0, n, rows)
    yield s.rows("residual", residual, ldr, n, rows)


@touches(norms.head_norm)
def _head_norm(
    s: Sizes, x: int, ldx: int, q_heads: int, dq: int, q_weight: int, k_heads: int, dk: int, k_weight: int,
    eps: int, rows: int,
) -> Spans:  # fmt: skip
    yield s.rows("x", x, ldx, q_heads * dq + k_heads * dk, rows)
    yield Span("q weight", q_weight, _f32(dq))
    yield Span("k weight", k_weight, _f32(dk))


@touches(activations.activate_quant)
def _activate_quant(
    s: Sizes, x: int, ldx: int, up: int, n: int, activation: int, limit: int, dst: int, kind: int, rows: int
) -> Spans:
    yield s.rows("x", x, ldx, up // 4 + n if activation in GATED else n, rows)
    yield s.tiles("dst", dst, kind, n, rows)


@touches(rope_table)
def _rope_table(s: Sizes, frequencies: int, pairs: int, pairing: int, scale: int, out: int, ld: int) -> Spans:
    yield Span("frequencies", frequencies, 8 * pairs)
    yield Span("out", out, s.n_ubatch * ld)


@touches(positions.rotate_heads)
def _rotate_heads(
    s: Sizes, x: int, ldx: int, heads: int, d: int, table: int, ld: int, n_rot: int, pairing: int
) -> Spans:
    yield Span("x", x, (s.n_ubatch - 1) * ldx + 4 * ((heads - 1) * d + n_rot))
    yield Span("table", table, s.n_ubatch * ld)


@touches(positions.temper_queries)
def _temper_queries(s: Sizes, x: int, ldx: int, n: int, scale: int, length: int, offset: int) -> Spans:
    yield s.rows("x", x, ldx, n)


@touches(positions.add_positions)
def _add_positions(s: Sizes, x: int, ldx: int, table: int, n: int) -> Spans:
    yield s.rows("x", x, ldx, n)
    yield Span("table", table, s.n_positions * 4 * n)


@touches(
    rotate_and_store, attention_combine, rotate_back, *{attention(k, v) for k in KV_TYPES for v in KV_TYPES}
)
def _attention(s: Sizes, descriptor: int) -> Spans:
    yield Span("descriptor", descriptor, 8 * al.A_WORDS)
    a = words_at(descriptor, al.A_WORDS)
    heads, kv_heads, dk, dv = a[al.A_HEADS], a[al.A_KV_HEADS], a[al.A_DK], a[al.A_DV]
    stored = 0 if a[al.A_SHARED] else kv_heads
    yield s.rows("x", a[al.A_X], a[al.A_LDX], (heads + stored) * dk + stored * dv)
    yield s.rows("out", a[al.A_OUT], a[al.A_LDO], heads * dv)
    partials = partial_bytes(s.max_runs, kv_heads, heads // kv_heads, dv, a[al.A_MAX_PARTS])
    yield Span("partials", a[al.A_PARTIALS], partials)
    if a[al.A_SINKS]:
        yield Span("sinks", a[al.A_SINKS], 4 * heads)
    if a[al.A_ROPE]:
        yield Span("rope", a[al.A_ROPE], s.n_ubatch * a[al.A_LD_ROPE])
    if a[al.A_BIAS]:
        yield Span("bias", a[al.A_BIAS], 4 * heads * 2 * a[al.A_SPAN])


def _pairs(s: Sizes, descriptor: int) -> int:
    """The most pairs of a row and an expert."""
    return s.n_ubatch * words_at(descriptor, 1 + routing.T_K)[routing.T_K]


def _routing(s: Sizes, descriptor: int) -> Spans:
    yield Span("routing", descriptor, 8 * routing.T_WORDS)
    t, n_pairs = words_at(descriptor, routing.T_WORDS), _pairs(s, descriptor)
    for name in ("IDS", "WEIGHTS", "PLACE", "PAIR", "EXPERT"):
        yield Span(f"routing {name}", t[getattr(routing, f"T_{name}")], 4 * n_pairs)
    for name in ("START", "ACTIVE"):
        yield Span(f"routing {name}", t[getattr(routing, f"T_{name}")], 4 * (t[routing.T_EXPERTS] + 1))


EXTENTS[routing.dispatch] = _routing


@touches(routing.route)
def _route(s: Sizes, logits: int, ld: int, descriptor: int, gating: int, bias: int, *_: int) -> Spans:
    yield from _routing(s, descriptor)
    n_expert = words_at(descriptor, routing.T_WORDS)[routing.T_EXPERTS]
    yield s.rows("logits", logits, ld, n_expert)
    if bias:
        yield Span("bias", bias, _f32(n_expert))


@touches(routing.route_by_token)
def _route_by_token(
    s: Sizes, logits: int, ld: int, descriptor: int, gating: int, table: int, *_: int
) -> Spans:
    yield from _routing(s, descriptor)
    words = words_at(descriptor, routing.T_WORDS)
    yield s.rows("logits", logits, ld, words[routing.T_EXPERTS])
    yield Span("table", table, 4 * words[routing.T_K] * s.n_vocab)


@touches(routing.scale_weights)
def _scale_weights(s: Sizes, scales: int, descriptor: int) -> Spans:
    yield from _routing(s, descriptor)
    yield Span("scales", scales, 4 * words_at(descriptor, routing.T_WORDS)[routing.T_EXPERTS])


@touches(experts.gather_quant)
def _gather_quant(
    s: Sizes, x: int, ldx: int, n: int, dst: int, kind: int, descriptor: int, weighed: int
) -> Spans:
    yield from _routing(s, descriptor)
    yield s.rows("x", x, ldx, n)
    yield Span("dst", dst, _pairs(s, descriptor) * act_bytes(kind, n))


@touches(experts.matmul_experts)
def _matmul_experts(
    s: Sizes, op: Op, w: int, expert_bytes: int, n_panels: int, panel_bytes: int, x: int, x_bytes: int,
    k: int, out: int, ldo: int, descriptor: int, *_: object,
) -> Spans:  # fmt: skip
    yield from _routing(s, descriptor)
    n_pairs = _pairs(s, descriptor)
    yield Span("weights", w, words_at(descriptor, routing.T_WORDS)[routing.T_EXPERTS] * expert_bytes)
    yield Span("x", x, n_pairs * x_bytes)
    yield Span("out", out, (n_pairs - 1) * ldo + _f32(LANES * n_panels))


@touches(experts.bias_experts)
def _bias_experts(s: Sizes, x: int, ldx: int, bias: int, expert_bytes: int, n: int, descriptor: int) -> Spans:
    yield from _routing(s, descriptor)
    yield Span("x", x, (_pairs(s, descriptor) - 1) * ldx + _f32(n))
    yield Span("bias", bias, words_at(descriptor, routing.T_WORDS)[routing.T_EXPERTS] * expert_bytes)


@touches(experts.activate_experts)
def _activate_experts(
    s: Sizes, x: int, ldx: int, up: int, n: int, activation: int, limit: int, dst: int, kind: int,
    descriptor: int,
) -> Spans:  # fmt: skip
    yield from _routing(s, descriptor)
    width = up // 4 + n if activation in GATED else n
    yield Span("x", x, (_pairs(s, descriptor) - 1) * ldx + _f32(width))
    yield Span("dst", dst, _pairs(s, descriptor) * act_bytes(kind, n))


@touches(experts.combine_experts)
def _combine_experts(
    s: Sizes, x: int, ldx: int, y: int, ldy: int, n: int, scale: int, weighed: int, descriptor: int
) -> Spans:
    yield from _routing(s, descriptor)
    yield s.rows("x", x, ldx, n)
    yield Span("y", y, (_pairs(s, descriptor) - 1) * ldy + _f32(n))
