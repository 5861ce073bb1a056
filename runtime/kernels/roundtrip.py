"""Values rounded to what a narrow float holds and back, as some models were trained with.

A block shares a scale, the power of two that brings its largest value to at most the type's largest; then
each value goes to the nearest of the type, ties to even.

E4M3   blocks of 64; 4 bits of exponent from -6, 3 of mantissa, up to 448; blocks below 1e-4 count as that
E2M1   blocks of 32, after a Hadamard rotation of the head; exponents from 0, 1 bit of mantissa, up to 6
"""

import numba as nb
import numpy as np

from runtime.kernels.job import ROWS
from runtime.kernels.kvstore import hadamard
from runtime.kernels.simd import bits_of_f64, f64_from_bits, inline, ld_f32, st_f32
from runtime.kernels.tape import Op, arg, variable
from runtime.team import grab

NONE, E4M3, E2M1 = 0, 1, 2


@nb.njit(**inline)
def _exponent(x):
    """Of a positive, normal double."""
    return (bits_of_f64(x) >> 52) - 1023


@nb.njit(**inline)
def _power(e):
    """2 ** e"""
    return f64_from_bits((e + 1023) << 52)


@nb.njit(**inline)
def _round_block(x, n, mantissa, least, largest, floor):
    """f32 [n] in place; blocks of zeros stay."""
    top = nb.float64(floor)
    for i in range(n):
        top = max(top, abs(nb.float64(ld_f32(x + 4 * i))))
    if top == 0.0:
        return
    share = top / largest
    e = _exponent(share)
    scale = _power(e) if _power(e) == share else _power(e + 1)
    for i in range(n):
        y = nb.float64(ld_f32(x + 4 * i)) / scale
        step = _power(max(_exponent(abs(y)), nb.int64(least)) - mantissa)
        st_f32(x + 4 * i, nb.float32(np.rint(y / step) * step * scale))


@nb.njit(**inline)
def round_head(x, d, n, kind):
    """The first n of a head's d values, in place."""
    if kind == E4M3:
        for i in range(0, n, 64):
            _round_block(x + 4 * i, min(nb.int64(64), n - i), 3, -6, 448.0, 1e-4)
    elif kind == E2M1:
        hadamard(x, d)
        for i in range(0, n, 32):
            _round_block(x + 4 * i, min(nb.int64(32), n - i), 1, 0, 6.0, 0.0)


@Op
def round_heads(a, job, ith, nth, ctl):
    """(x, ldx, heads, D, n, kind): the first n values of each head"""
    x, ldx, heads, d, n, kind, rows = (
        arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5), variable(job, ROWS)
    )  # fmt: skip
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        for h in range(heads):
            round_head(x + j * ldx + 4 * h * d, d, n, kind)
