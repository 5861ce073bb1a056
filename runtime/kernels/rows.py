"""Row-wise ops of the tape: norms, activations, biases, residuals; each fused with the quantiser where it can be.

A row is one token's f32 vector. Rows are handed out one or a few at a time; no op looks at two of them.
Parameters named `rows` are indices of job variables that hold a row count. Widths are multiples of 16.
RMS norm: ``y = x / sqrt(mean(x^2) + eps) * w``, squares summed in 16 lanes and folded by one fixed tree.
"""

import numba as nb
import numpy as np

from runtime.kernels.quantise import quantise
from runtime.kernels.simd import (
    LANES,
    VB,
    fma,
    hsum,
    inline,
    ld_f32,
    ld_i64,
    load_f32,
    splat_f32,
    store,
)
from runtime.kernels.tape import JOB_SCRATCH, JOB_VARS, SCRATCH, Op, arg
from runtime.kernels.vecmath import vgelu, vsilu, vtanh
from runtime.kernels.job import OUT_INDEX, OUT_ROWS
from runtime.team import grab


@nb.njit(**inline)
def count(job, variable):
    return ld_i64(job + JOB_VARS + 8 * variable)


@nb.njit(**inline)
def rms_scale(x, n, eps):
    s = splat_f32(nb.float32(0.0))
    for i in range(0, 4 * n, VB):
        v = load_f32(x + i)
        s = fma(v, v, s)
    return splat_f32(nb.float32(1.0) / np.sqrt(hsum(s) / nb.float32(n) + eps))


@nb.njit(**inline)
def rms_norm(x, w, n, eps, out):
    r = rms_scale(x, n, eps)
    for i in range(0, 4 * n, VB):
        store(out + i, load_f32(x + i) * r * load_f32(w + i))


@Op
def norm_quant(a, job, ith, nth, ctl):
    """(x, ldx, weight, n, eps f32, dst, activation kind, rows): dst = quantise(rms_norm(x))"""
    x, ldx, w, n, eps = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), ld_f32(a + 8 * 4)
    dst, kind, rows = arg(a, 5), arg(a, 6), count(job, arg(a, 7))
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        rms_norm(x + j * ldx, w, n, eps, tmp)
        quantise(tmp - j * 4 * n, 4 * n, j, j + 1, rows, n, dst, kind)


@Op
def norm_add(a, job, ith, nth, ctl):
    """(x, ldx, weight, n, eps f32, residual, ldr, rows): residual += rms_norm(x)"""
    x, ldx, w, n, eps = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), ld_f32(a + 8 * 4)
    residual, ldr, rows = arg(a, 5), arg(a, 6), count(job, arg(a, 7))
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        src, dst = x + j * ldx, residual + j * ldr
        r = rms_scale(src, n, eps)
        for i in range(0, 4 * n, VB):
            store(dst + i, load_f32(dst + i) + load_f32(src + i) * r * load_f32(w + i))


@Op
def head_norm(a, job, ith, nth, ctl):
    """(x, ldx, heads, kv heads, D, q weight, k weight, eps f32, rows): RMS norm of each q and k head, in place"""
    x, ldx, heads, kv_heads, d = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    wq, wk, eps, rows = arg(a, 5), arg(a, 6), ld_f32(a + 8 * 7), count(job, arg(a, 8))
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        for h in range(heads + kv_heads):
            at = x + j * ldx + 4 * h * d
            rms_norm(at, wq if h < heads else wk, d, eps, at)


@Op
def quant(a, job, ith, nth, ctl):
    """(x, ldx, n, dst, activation kind, rows)"""
    x, ldx, n, dst, kind, rows = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), count(job, arg(a, 5))
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        quantise(x, ldx, j, min(rows, j + 4), rows, n, dst, kind)


@nb.njit(**inline)
def gated_op(activation, a, job, ith, nth, ctl):
    x, ldx, n, dst, kind, rows = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), count(job, arg(a, 5))
    up = arg(a, 6)
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        g = x + j * ldx
        for i in range(0, 4 * n, VB):
            store(tmp + i, activation(load_f32(g + i)) * load_f32(g + up + i))
        quantise(tmp - j * 4 * n, 4 * n, j, j + 1, rows, n, dst, kind)


@Op
def swiglu_quant(a, job, ith, nth, ctl):
    """(gate and up rows, ldx, n, dst, activation kind, rows, byte offset of up): quantise(silu(gate) * up)"""
    gated_op(vsilu, a, job, ith, nth, ctl)


@Op
def geglu_quant(a, job, ith, nth, ctl):
    """As swiglu_quant with the tanh form of GELU."""
    gated_op(vgelu, a, job, ith, nth, ctl)


@Op
def add_bias(a, job, ith, nth, ctl):
    """(x, ldx, bias, n, rows): x += bias"""
    x, ldx, bias, n, rows = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), count(job, arg(a, 4))
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            at = x + r * ldx
            for i in range(0, 4 * n, VB):
                store(at + i, load_f32(at + i) + load_f32(bias + i))


@Op
def add_rows(a, job, ith, nth, ctl):
    """(x, ldx, residual, ldr, n, rows): residual += x"""
    x, ldx, residual, ldr, n, rows = (
        arg(a, 0),
        arg(a, 1),
        arg(a, 2),
        arg(a, 3),
        arg(a, 4),
        count(job, arg(a, 5)),
    )
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            src, dst = x + r * ldx, residual + r * ldr
            for i in range(0, 4 * n, VB):
                store(dst + i, load_f32(dst + i) + load_f32(src + i))


@Op
def gather_out(a, job, ith, nth, ctl):
    """(x, ldx, n, out, ldo): out[i] = x[OUT_INDEX[i]], the rows that want logits"""
    x, ldx, n, out, ldo = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    rows, index = count(job, OUT_ROWS), ld_i64(job + JOB_VARS + 8 * OUT_INDEX)
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            src = x + ld_i64(index + 8 * r) * ldx
            for i in range(0, 4 * n, VB):
                store(out + r * ldo + i, load_f32(src + i))


@Op
def softcap(a, job, ith, nth, ctl):
    """(x, ldx, n, cap f32, rows): x = cap * tanh(x / cap), in place"""
    x, ldx, n, cap, rows = arg(a, 0), arg(a, 1), arg(a, 2), ld_f32(a + 8 * 3), count(job, arg(a, 4))
    inverse = nb.float32(1.0) / cap
    part = 256 * LANES
    parts = (n + part - 1) // part
    while True:
        item = grab(ctl, nth, 1)
        if item >= rows * parts:
            break
        at = x + item // parts * ldx + item % parts * 4 * part
        for i in range(0, 4 * min(part, n - item % parts * part), VB):
            store(at + i, vtanh(load_f32(at + i) * splat_f32(inverse)) * splat_f32(cap))
