"""Alternating updates (arXiv:2301.13310): a token has four streams, of which a layer works on the first.

Before a layer each stream is predicted from all four, after it each is corrected by what the layer changed of
the first. A row holds its streams side by side, f32 [4][n].
"""

import numba as nb

from runtime.kernels.job import ROWS
from runtime.kernels.simd import (
    VB,
    fma,
    hsum,
    inline,
    ld_f32,
    load_f32,
    splat_f32,
    store,
    vdiv,
    vmax,
    vsqrt,
)
from runtime.kernels.tape import Op, arg, variable
from runtime.team import grab

STREAMS = 4
_SMALLEST = 1e-30  # length to divide by


@nb.njit(**inline)
def length(x, n):
    """sqrt(sum(x^2)) of f32 [n], in all lanes."""
    squares = splat_f32(nb.float32(0.0))
    for i in range(0, 4 * n, VB):
        v = load_f32(x + i)
        squares = fma(v, v, squares)
    return vsqrt(splat_f32(hsum(squares)))


@Op
def match_length(a, job, ith, nth, ctl):
    """(x, ldx, target, ldt, n): x *= |target| / |x|"""
    x, ldx, target, ldt, n, rows = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), variable(job, ROWS)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        row = x + j * ldx
        own = vmax(length(row, n), splat_f32(nb.float32(_SMALLEST)))
        factor = vdiv(length(target + j * ldt, n), own)
        for i in range(0, 4 * n, VB):
            store(row + i, load_f32(row + i) * factor)


@Op
def predict(a, job, ith, nth, ctl):
    """(streams, ld, n, c, ldc): stream i += sum over j of c[4 i + j] * stream j"""
    x, ldx, n, coefs, ldc, rows = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), variable(job, ROWS)
    while True:
        r = grab(ctl, nth, 1)
        if r >= rows:
            break
        c = coefs + r * ldc
        for at in range(x + r * ldx, x + r * ldx + 4 * n, VB):
            s0, s1 = load_f32(at), load_f32(at + 4 * n)
            s2, s3 = load_f32(at + 8 * n), load_f32(at + 12 * n)
            for i in range(STREAMS):
                line = c + 4 * STREAMS * i
                v = s0 * splat_f32(ld_f32(line))
                v = fma(s1, splat_f32(ld_f32(line + 4)), v)
                v = fma(s2, splat_f32(ld_f32(line + 8)), v)
                v = fma(s3, splat_f32(ld_f32(line + 12)), v)
                store(at + 4 * n * i, load_f32(at + 4 * n * i) + v)


@Op
def correct(a, job, ith, nth, ctl):
    """(streams, ld, n, result, ldr, c, ldc): stream i += (1 + c[i]) * (result - stream 0)"""
    x, ldx, n, result, ldr = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    coefs, ldc, rows = arg(a, 5), arg(a, 6), variable(job, ROWS)
    while True:
        r = grab(ctl, nth, 1)
        if r >= rows:
            break
        for b in range(0, 4 * n, VB):
            at = x + r * ldx + b
            change = load_f32(result + r * ldr + b) - load_f32(at)
            for i in range(STREAMS):
                share = splat_f32(nb.float32(1.0) + ld_f32(coefs + r * ldc + 4 * i))
                store(at + 4 * n * i, fma(share, change, load_f32(at + 4 * n * i)))


@Op
def keep_outliers(a, job, ith, nth, ctl):
    """(x, ldx, n, factor f32): x = max(x - (mean(x) + factor * std(x)), 0), std over n - 1 degrees"""
    x, ldx, n, factor, rows = arg(a, 0), arg(a, 1), arg(a, 2), ld_f32(a + 8 * 3), variable(job, ROWS)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        row = x + j * ldx
        total = splat_f32(nb.float32(0.0))
        for i in range(0, 4 * n, VB):
            total = total + load_f32(row + i)
        mean = splat_f32(hsum(total) / nb.float32(n))
        squares = splat_f32(nb.float32(0.0))
        for i in range(0, 4 * n, VB):
            v = load_f32(row + i) - mean
            squares = fma(v, v, squares)
        deviation = vsqrt(splat_f32(hsum(squares) / nb.float32(max(n - 1, nb.int64(1)))))
        threshold = fma(deviation, splat_f32(factor), mean)
        for i in range(0, 4 * n, VB):
            store(row + i, vmax(load_f32(row + i) - threshold, splat_f32(nb.float32(0.0))))
