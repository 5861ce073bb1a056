"""Norms of rows and of heads.

RMS norm    ``y = x / sqrt(mean(x^2) + eps) * w``
layer norm  ``y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b``

Sums are taken in 16 lanes and folded by one fixed tree. Widths are multiples of 16. Parameters named `rows`
are indices of job variables that hold a row count; a `bias` address of 0 means none.
"""

import numba as nb
import numpy as np

from runtime.kernels.quantise import quantise
from runtime.kernels.simd import VB, fma, hsum, inline, ld_f32, ld_i64, load_f32, splat_f32, store
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.team import grab

RMS, LAYER = 0, 1


@nb.njit(**inline)
def scale_of(squares, n, eps):
    """1 / sqrt(mean + eps) in all lanes, from lanes of summed squares."""
    return splat_f32(nb.float32(1.0) / np.sqrt(hsum(squares) / nb.float32(n) + eps))


@nb.njit(**inline)
def rms_scale(x, n, eps):
    s = splat_f32(nb.float32(0.0))
    for i in range(0, 4 * n, VB):
        v = load_f32(x + i)
        s = fma(v, v, s)
    return scale_of(s, n, eps)


@nb.njit(**inline)
def rms_norm(x, w, n, eps, out):
    r = rms_scale(x, n, eps)
    for i in range(0, 4 * n, VB):
        store(out + i, load_f32(x + i) * r * load_f32(w + i))


@nb.njit(**inline)
def layer_norm(x, w, bias, n, eps, out):
    total = splat_f32(nb.float32(0.0))
    for i in range(0, 4 * n, VB):
        total = total + load_f32(x + i)
    mean = splat_f32(hsum(total) / nb.float32(n))
    s = splat_f32(nb.float32(0.0))
    for i in range(0, 4 * n, VB):
        v = load_f32(x + i) - mean
        s = fma(v, v, s)
    r = scale_of(s, n, eps)
    for i in range(0, 4 * n, VB):
        v = (load_f32(x + i) - mean) * r * load_f32(w + i)
        if bias != 0:
            v = v + load_f32(bias + i)
        store(out + i, v)


@nb.njit(**inline)
def norm(x, w, bias, n, eps, kind, out):
    if kind == LAYER:
        layer_norm(x, w, bias, n, eps, out)
    else:
        rms_norm(x, w, n, eps, out)


@Op
def norm_quant(a, job, ith, nth, ctl):
    """(x, ldx, weight, bias, n, eps f32, norm, dst, activation kind, rows): dst = quantise(norm(x))"""
    x, ldx, w, bias, n, eps, kind = (
        arg(a, 0),
        arg(a, 1),
        arg(a, 2),
        arg(a, 3),
        arg(a, 4),
        ld_f32(a + 40),
        arg(a, 6),
    )
    dst, act_kind, rows = arg(a, 7), arg(a, 8), variable(job, arg(a, 9))
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        norm(x + j * ldx, w, bias, n, eps, kind, tmp)
        quantise(tmp - j * 4 * n, 4 * n, j, j + 1, rows, n, dst, act_kind)


@Op
def norm_rows(a, job, ith, nth, ctl):
    """(x, ldx, weight, bias, n, eps f32, norm, out, ldo, rows): out = norm(x)"""
    x, ldx, w, bias, n, eps, kind = (
        arg(a, 0),
        arg(a, 1),
        arg(a, 2),
        arg(a, 3),
        arg(a, 4),
        ld_f32(a + 40),
        arg(a, 6),
    )
    out, ldo, rows = arg(a, 7), arg(a, 8), variable(job, arg(a, 9))
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        norm(x + j * ldx, w, bias, n, eps, kind, out + j * ldo)


@Op
def norm_add(a, job, ith, nth, ctl):
    """(x, ldx, weight, n, eps f32, residual, ldr, rows): residual += rms_norm(x)"""
    x, ldx, w, n, eps = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), ld_f32(a + 8 * 4)
    residual, ldr, rows = arg(a, 5), arg(a, 6), variable(job, arg(a, 7))
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
    """(x, ldx, q heads, Dq, q weight, k heads, Dk, k weight, eps f32, rows): RMS norm of each head, in place.

    Heads of keys follow those of queries. One head may be as wide as the whole projection.
    """
    x, ldx, q_heads, dq, wq = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    k_heads, dk, wk, eps, rows = arg(a, 5), arg(a, 6), arg(a, 7), ld_f32(a + 8 * 8), variable(job, arg(a, 9))
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        at = x + j * ldx
        for _ in range(q_heads):
            rms_norm(at, wq, dq, eps, at)
            at += 4 * dq
        for _ in range(k_heads):
            rms_norm(at, wk, dk, eps, at)
            at += 4 * dk
