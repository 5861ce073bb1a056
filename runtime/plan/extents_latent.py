"""What the ops on rows that heads share touch at most, see `runtime.plan.extents`.

Rows lie in blocks and rings, which are not of the plan's memory: their addresses come with each run.
"""

from runtime.kernels import grouped
from runtime.kernels import indexer as ix
from runtime.kernels import latent as la
from runtime.kernels import latent_rows as lr
from runtime.kernels.quantise import act_bytes
from runtime.kernels.simd import LANES
from runtime.plan.extents import Sizes, Span, Spans, touches, words_at


def rows_source(s: Sizes, name: str, source: int) -> Spans:
    """A descriptor of `latent_rows`, and the lists that it may name."""
    yield Span(name, source, 8 * lr.R_WORDS)
    words = words_at(source, lr.R_WORDS)
    if words[lr.R_TOP_K]:
        yield Span(f"lists of {name}", words[lr.R_LISTS], s.n_ubatch * 4 * words[lr.R_TOP_K])


@touches(lr.store_latents)
def _store_latents(s: Sizes, source: int, x: int, ldx: int) -> Spans:
    yield from rows_source(s, "source", source)
    yield s.rows("x", x, ldx, words_at(source, lr.R_WORDS)[lr.R_D])


@touches(la.latent_attention, la.latent_combine)
def _latent_attention(s: Sizes, descriptor: int) -> Spans:
    yield Span("descriptor", descriptor, 8 * la.L_WORDS)
    a = words_at(descriptor, la.L_WORDS)
    heads, dv = a[la.L_HEADS], a[la.L_DV]
    yield s.rows("q", a[la.L_Q], a[la.L_LDQ], heads * a[la.L_D])
    yield s.rows("out", a[la.L_OUT], a[la.L_LDO], heads * dv)
    if a[la.L_SINKS]:
        yield Span("sinks", a[la.L_SINKS], -(-heads // LANES) * LANES * 4)
    yield from rows_source(s, "first", a[la.L_FIRST])
    if a[la.L_SECOND]:
        yield from rows_source(s, "second", a[la.L_SECOND])
    records = la.records_bytes(s.max_runs, heads, dv, a[la.L_MAX_PARTS])
    yield Span("records", a[la.L_RECORDS], records)


@touches(grouped.quant_groups)
def _quant_groups(
    s: Sizes, x: int, ldx: int, groups: int, x_bytes: int, n: int, dst: int, dst_bytes: int, kind: int,
    rows: int,
) -> Spans:  # fmt: skip
    yield s.rows("x", x, ldx, (groups - 1) * x_bytes // 4 + n, rows)
    yield Span("dst", dst, (groups - 1) * dst_bytes + s.count(rows) * act_bytes(kind, n))


@touches(grouped.matmul_groups)
def _matmul_groups(s: Sizes, descriptor: int) -> Spans:
    yield Span("descriptor", descriptor, 8 * grouped.G_WORDS)
    g = words_at(descriptor, grouped.G_WORDS)
    last, rows = g[grouped.G_GROUPS] - 1, g[grouped.G_ROWS]
    group = g[grouped.G_PANELS] * g[grouped.G_PANEL_BYTES]
    yield Span("weights", g[grouped.G_WEIGHTS], last * g[grouped.G_GROUP_BYTES] + group)
    yield Span("x", g[grouped.G_X], (last + 1) * g[grouped.G_X_BYTES])
    width = last * g[grouped.G_OUT_BYTES] // 4 + LANES * g[grouped.G_PANELS]
    yield s.rows("out", g[grouped.G_OUT], g[grouped.G_LDO], width, rows)


@touches(grouped.copy_groups)
def _copy_groups(
    s: Sizes, x: int, ldx: int, groups: int, x_bytes: int, n: int, out: int, ldo: int, out_bytes: int,
    rows: int,
) -> Spans:  # fmt: skip
    yield s.rows("x", x, ldx, (groups - 1) * x_bytes // 4 + n, rows)
    yield s.rows("out", out, ldo, (groups - 1) * out_bytes // 4 + n, rows)


@touches(ix.index_scores, ix.index_select)
def _indexer(s: Sizes, descriptor: int) -> Spans:
    yield Span("descriptor", descriptor, 8 * ix.I_WORDS)
    a = words_at(descriptor, ix.I_WORDS)
    yield s.rows("q", a[ix.I_Q], a[ix.I_LDQ], a[ix.I_HEADS] * a[ix.I_D])
    yield s.rows("weights", a[ix.I_W], a[ix.I_LDW], a[ix.I_HEADS])
    yield from rows_source(s, "keys", a[ix.I_KEYS])
    yield from rows_source(s, "target", a[ix.I_TARGET])
    yield Span("scores", a[ix.I_SCORES], s.max_runs * a[ix.I_LD_SCORES])
