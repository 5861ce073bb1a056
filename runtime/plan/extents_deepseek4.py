"""What the ops of DeepSeek V4 touch at most, see `runtime.plan.extents`.

Rings and cache blocks are not of the plan's memory: their addresses come with each run.
"""

from runtime.kernels import compress
from runtime.kernels import hyperconnect as hc
from runtime.kernels import latent_rows as lr
from runtime.kernels.roundtrip import round_heads
from runtime.plan.extents import Sizes, Span, Spans, touches, words_at


@touches(hc.spread)
def _spread(s: Sizes, x: int, ldx: int, n: int, streams: int, lds: int) -> Spans:
    yield s.rows("x", x, ldx, n)
    yield s.rows("streams", streams, lds, hc.STREAMS * n)


@touches(hc.previous)
def _previous(s: Sizes, source: int, n: int, out: int, ldo: int) -> Spans:
    yield Span("source", source, 8 * lr.R_WORDS)
    yield s.rows("out", out, ldo, n)


@touches(hc.enter)
def _enter(
    s: Sizes, m: int, ldm: int, scales: int, bases: int, eps: int, iterations: int, streams: int, lds: int,
    n: int, out: int, ldo: int,
) -> Spans:  # fmt: skip
    yield s.rows("m", m, ldm, hc.GATES)
    yield Span("scales", scales, 4 * hc.GATES)
    yield Span("bases", bases, 4 * hc.GATES)
    yield s.rows("streams", streams, lds, hc.STREAMS * n)
    yield s.rows("out", out, ldo, n)


@touches(hc.leave)
def _leave(s: Sizes, m: int, ldm: int, streams: int, lds: int, n: int, y: int, ldy: int) -> Spans:
    yield s.rows("m", m, ldm, hc.GATES)
    yield s.rows("streams", streams, lds, hc.STREAMS * n)
    yield s.rows("y", y, ldy, n)


@touches(hc.merge)
def _merge(
    s: Sizes, m: int, ldm: int, scales: int, bases: int, eps: int, streams: int, lds: int, n: int, out: int,
    ldo: int, rows: int,
) -> Spans:  # fmt: skip
    yield s.rows("m", m, ldm, hc.STREAMS, rows)
    yield Span("scales", scales, 4 * hc.STREAMS)
    yield Span("bases", bases, 4 * hc.STREAMS)
    yield s.rows("streams", streams, lds, hc.STREAMS * n, rows)
    yield s.rows("out", out, ldo, n, rows)


@touches(round_heads)
def _round_heads(s: Sizes, x: int, ldx: int, heads: int, d: int, n: int, kind: int) -> Spans:
    yield s.rows("x", x, ldx, heads * d)


@touches(compress.append, compress.emit)
def _compress(s: Sizes, descriptor: int) -> Spans:
    yield Span("descriptor", descriptor, 8 * compress.C_WORDS)
    c = words_at(descriptor, compress.C_WORDS)
    width, ldx = c[compress.C_WIDTH], c[compress.C_LDX]
    yield s.rows("x", c[compress.C_X], ldx, width)
    yield s.rows("scores", c[compress.C_X] + c[compress.C_GATE], ldx, width)
    yield Span("ape", c[compress.C_APE], 4 * width * c[compress.C_RATIO])
    yield Span("norm", c[compress.C_NORM], 4 * c[compress.C_D])
    yield Span("frequencies", c[compress.C_FREQUENCIES], 8 * c[compress.C_PAIRS])
    yield Span("rows", c[compress.C_ROWS], 8 * lr.R_WORDS)
