"""What the ops of convolutions and recurrences touch at most, see `runtime.plan.extents`.

States are not of the plan's memory: their addresses come with each run.
"""

from runtime.kernels import mamba, wkv
from runtime.kernels.conv import conv
from runtime.plan.extents import Sizes, Span, Spans, touches, words_at


@touches(conv)
def _conv(
    s: Sizes, x: int, ldx: int, before: int, after: int, n: int, taps: int, weight: int, bias: int, silu: int,
    out: int, ldo: int, state: int,
) -> Spans:  # fmt: skip
    yield s.rows("x", x, ldx, n)
    yield s.rows("before", x + before, ldx, n)
    yield s.rows("after", x + after, ldx, n)
    yield Span("weight", weight, 4 * taps * n)
    if bias:
        yield Span("bias", bias, 4 * n)
    yield s.rows("out", out, ldo, n)


@touches(mamba.scan_heads)
def _scan_heads(
    s: Sizes, x: int, ldx: int, heads: int, d: int, groups: int, n: int, steps: int, ldt: int, bias: int,
    rate: int, skip: int, out: int, ldo: int, state: int, stream: int,
) -> Spans:  # fmt: skip
    yield s.rows("x", x, ldx, heads * d + 2 * groups * n)
    yield Span("steps", steps, (s.n_ubatch - 1) * ldt + 4 * heads)
    for name, address in (("bias", bias), ("A", rate), ("D", skip)):
        yield Span(name, address, 4 * heads)
    yield s.rows("out", out, ldo, heads * d)


@touches(mamba.scan_channels)
def _scan_channels(
    s: Sizes, x: int, ldx: int, n: int, n_state: int, steps: int, ldt: int, b: int, ldb: int, rate: int,
    skip: int, z: int, ldz: int, state: int,
) -> Spans:  # fmt: skip
    yield s.rows("x", x, ldx, n)
    yield s.rows("steps", steps, ldt, n)
    yield Span("B and C", b, (s.n_ubatch - 1) * ldb + 8 * n_state)
    yield Span("A", rate, 4 * n * n_state)
    yield Span("D", skip, 4 * n)
    yield s.rows("z", z, ldz, n)


@touches(mamba.gate_norm_quant)
def _gate_norm_quant(
    s: Sizes, z: int, ldz: int, up: int, n: int, groups: int, weight: int, eps: int, dst: int, kind: int,
    rows: int,
) -> Spans:  # fmt: skip
    yield s.rows("z", z, ldz, up // 4 + n, rows)
    yield Span("weight", weight, 4 * n)
    yield s.tiles("dst", dst, kind, n, rows)


@touches(wkv.shift_quant)
def _shift_quant(s: Sizes, x: int, ldx: int, n: int, lerp: int, dst: int, kind: int, state: int) -> Spans:
    yield s.rows("x", x, ldx, n)
    yield Span("lerp", lerp, 4 * n)
    yield s.tiles("dst", dst, kind, n)


@touches(wkv.mix_heads)
def _mix_heads(s: Sizes, descriptor: int) -> Spans:
    yield Span("descriptor", descriptor, 8 * wkv.M_WORDS)
    m = words_at(descriptor, wkv.M_WORDS)
    n = m[wkv.M_HEADS] * m[wkv.M_D]
    for name in ("R", "W", "K", "V", "RATE", "MIX", "FIRST", "GATE", "OUT"):
        address = m[getattr(wkv, f"M_{name}")]
        if address:
            yield s.rows(name, address, m[wkv.M_LD], n)
    for name in ("W0", "A0", "V0", "K_K", "K_A", "R_K", "LN", "LN_BIAS"):
        address = m[getattr(wkv, f"M_{name}")]
        if address:
            yield Span(name, address, 4 * n)
