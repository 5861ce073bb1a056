"""Row-wise ops of the tape: quantising, sums, gates, the rows that want logits and what happens to those.

A row is one token's f32 vector. Rows are handed out one or a few at a time; no op looks at two of them.
Parameters named `rows` are indices of job variables that hold a row count. Widths are multiples of 16.
"""

import numba as nb

from runtime.kernels.job import OUT_INDEX, OUT_ROWS
from runtime.kernels.quantise import quantise
from runtime.kernels.simd import LANES, VB, fma, hsum, inline, ld_f32, ld_i64, load_f32, splat_f32, store
from runtime.kernels.tape import Op, arg, variable
from runtime.kernels.vecmath import vsigmoid, vtanh
from runtime.team import grab


@Op
def quant(a, job, ith, nth, ctl):
    """(x, ldx, n, dst, activation kind, rows)"""
    x, ldx, n, dst, kind, rows = (
        arg(a, 0),
        arg(a, 1),
        arg(a, 2),
        arg(a, 3),
        arg(a, 4),
        variable(job, arg(a, 5)),
    )
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        quantise(x, ldx, j, min(rows, j + 4), rows, n, dst, kind)


@nb.njit(**inline)
def add_scaled(dst, src, scale, n):
    """dst += scale * src, f32 [n]; `scale` is a vector."""
    for i in range(0, 4 * n, VB):
        store(dst + i, fma(load_f32(src + i), scale, load_f32(dst + i)))


@Op
def add_rows(a, job, ith, nth, ctl):
    """(x, ldx, lines, ldl, n, scale f32, rows): x += scale * lines; ldl = 0: all rows get one line"""
    x, ldx, lines, ldl, n = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    scale, rows = splat_f32(ld_f32(a + 8 * 5)), variable(job, arg(a, 6))
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            add_scaled(x + r * ldx, lines + r * ldl, scale, n)


@Op
def add_gated(a, job, ith, nth, ctl):
    """(x, ldx, y, ldy, n, in, ldin, weight, n in, rows): x += sigmoid(in . weight) * y, one gate per row"""
    x, ldx, y, ldy, n = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    source, lds, w, k, rows = arg(a, 5), arg(a, 6), arg(a, 7), arg(a, 8), variable(job, arg(a, 9))
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            dot = splat_f32(nb.float32(0.0))
            for i in range(0, 4 * k, VB):
                dot = fma(load_f32(source + r * lds + i), load_f32(w + i), dot)
            add_scaled(x + r * ldx, y + r * ldy, vsigmoid(splat_f32(hsum(dot))), n)


@Op
def gate_heads(a, job, ith, nth, ctl):
    """(x, ldx, heads, D, gates, ldg, rows): each head times the sigmoid of its gate, in place"""
    x, ldx, heads, d = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3)
    gates, ldg, rows = arg(a, 4), arg(a, 5), variable(job, arg(a, 6))
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            for h in range(heads):
                gate = vsigmoid(splat_f32(ld_f32(gates + r * ldg + 4 * h)))
                at = x + r * ldx + 4 * h * d
                for i in range(0, 4 * d, VB):
                    store(at + i, load_f32(at + i) * gate)


@Op
def clear_rows(a, job, ith, nth, ctl):
    """(x, ldx, n, rows): x = 0"""
    x, ldx, n, rows = arg(a, 0), arg(a, 1), arg(a, 2), variable(job, arg(a, 3))
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            for i in range(0, 4 * n, VB):
                store(x + r * ldx + i, splat_f32(nb.float32(0.0)))


@Op
def gather_out(a, job, ith, nth, ctl):
    """(x, ldx, n, out, ldo): out[i] = x[OUT_INDEX[i]], the rows that want logits"""
    x, ldx, n, out, ldo = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    rows, index = variable(job, OUT_ROWS), variable(job, OUT_INDEX)
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            src = x + ld_i64(index + 8 * r) * ldx
            for i in range(0, 4 * n, VB):
                store(out + r * ldo + i, load_f32(src + i))


@Op
def shape_logits(a, job, ith, nth, ctl):
    """(x, ldx, n, scale f32, cap f32, rows): x *= scale, then cap * tanh(x / cap) where cap > 0"""
    x, ldx, n, scale, cap = arg(a, 0), arg(a, 1), arg(a, 2), ld_f32(a + 8 * 3), ld_f32(a + 8 * 4)
    rows = variable(job, arg(a, 5))
    part = 256 * LANES
    parts = (n + part - 1) // part
    while True:
        item = grab(ctl, nth, 1)
        if item >= rows * parts:
            break
        at = x + item // parts * ldx + item % parts * 4 * part
        for i in range(0, 4 * min(part, n - item % parts * part), VB):
            v = load_f32(at + i) * splat_f32(scale)
            if cap > 0:
                v = vtanh(v * splat_f32(nb.float32(1.0) / cap)) * splat_f32(cap)
            store(at + i, v)
