"""Rotary positions.

The rotation of a step's rows is tabulated once per rope configuration and step: per row ``C[n]`` then
``S[n]`` f32 (n = rotated dims), arranged so that either pairing is one
formula, ``out = x * C + partner(x) * S``:

NORM   pairs (2i, 2i + 1): C = c0 c0 c1 c1 ..., S = -s0 s0 -s1 s1 ...
NEOX   pairs (i, i + n/2): C = c0 c1 ... c0 c1 ..., S = -s0 -s1 ... s0 s1 ...

Angles are computed in float64 as ``position * frequency`` by our own sine and cosine, so that the table, like
all else, has the same bits on every machine.
"""

import numba as nb
from llvmlite import ir
from numba.extending import intrinsic

from runtime.kernels.job import ROW_POSITION, ROWS
from runtime.kernels.simd import LANES, fma, fma1, inline, ld_f32, ld_f64, ld_i64, load_f32, st_f32, store
from runtime.kernels.tape import JOB_VARS, Op, arg
from runtime.kernels.vecmath import sincos
from runtime.team import grab

NORM, NEOX = 0, 1


@nb.njit(**inline)
def tabulate(freqs, pairs, pairing, magnitude, position, cos_at):
    """The table of one position."""
    sin_at = cos_at + 8 * pairs
    for i in range(pairs):
        s64, c64 = sincos(nb.float64(position) * ld_f64(freqs + 8 * i))
        s, c = nb.float32(s64) * magnitude, nb.float32(c64) * magnitude
        first = 8 * i if pairing == NORM else 4 * i
        second = first + 4 if pairing == NORM else first + 4 * pairs
        st_f32(cos_at + first, c)
        st_f32(cos_at + second, c)
        st_f32(sin_at + first, -s)
        st_f32(sin_at + second, s)


@Op
def rope_table(a, job, ith, nth, ctl):
    """(frequencies f64 [pairs], pairs, pairing, magnitude f32, out, bytes per row)"""
    freqs, pairs, pairing = arg(a, 0), arg(a, 1), arg(a, 2)
    magnitude, out, ld = ld_f32(a + 8 * 3), arg(a, 4), arg(a, 5)
    rows, positions = ld_i64(job + JOB_VARS + 8 * ROWS), ld_i64(job + JOB_VARS + 8 * ROW_POSITION)
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            tabulate(freqs, pairs, pairing, magnitude, ld_i64(positions + 8 * r), out + r * ld)


@intrinsic
def swap_pairs(typingctx, v):
    """Exchange lanes 2i and 2i + 1."""

    def codegen(cx, b, sig, args):
        i32 = ir.IntType(32)
        order = ir.Constant(ir.VectorType(i32, v.lanes), [i ^ 1 for i in range(v.lanes)])
        return b.shuffle_vector(args[0], args[0], order)

    return v(v), codegen


@nb.njit(**inline)
def rotate_norm(x, table, n):
    """Adjacent pairs, in place; n is even."""
    d = 0
    while d + LANES <= n:
        v = load_f32(x + 4 * d)
        store(x + 4 * d, fma(v, load_f32(table + 4 * d), swap_pairs(v) * load_f32(table + 4 * (n + d))))
        d += LANES
    while d < n:
        u, v = ld_f32(x + 4 * d), ld_f32(x + 4 * d + 4)
        c, s0, s1 = ld_f32(table + 4 * d), ld_f32(table + 4 * (n + d)), ld_f32(table + 4 * (n + d + 1))
        st_f32(x + 4 * d, fma1(u, c, v * s0))
        st_f32(x + 4 * d + 4, fma1(v, c, u * s1))
        d += 2


@nb.njit(**inline)
def rotate_neox(x, table, n):
    """Pairs half a rotation apart, in place; n is even."""
    half = n // 2
    d = 0
    while d + LANES <= half:
        p, q = x + 4 * d, x + 4 * (half + d)
        u, v = load_f32(p), load_f32(q)
        c = load_f32(table + 4 * d)
        store(p, fma(u, c, v * load_f32(table + 4 * (n + d))))
        store(q, fma(v, c, u * load_f32(table + 4 * (n + half + d))))
        d += LANES
    while d < half:
        p, q = x + 4 * d, x + 4 * (half + d)
        u, v, c = ld_f32(p), ld_f32(q), ld_f32(table + 4 * d)
        st_f32(p, fma1(u, c, v * ld_f32(table + 4 * (n + d))))
        st_f32(q, fma1(v, c, u * ld_f32(table + 4 * (n + half + d))))
        d += 1
