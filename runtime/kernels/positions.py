"""Ops that look at a row's position: learned positions, query temperatures, rope apart from attention.

Parameters of `rotate_heads` are those of a rope table, see `rope`.
"""

import numba as nb

from runtime.kernels.job import ROW_POSITION, ROWS
from runtime.kernels.rope import NORM, rotate_neox, rotate_norm
from runtime.kernels.rows import add_scaled
from runtime.kernels.simd import VB, ld_f32, ld_i64, load_f32, splat_f32, store
from runtime.kernels.tape import Op, arg, variable
from runtime.kernels.vecmath import log_f64
from runtime.team import grab


@Op
def add_positions(a, job, ith, nth, ctl):
    """(x, ldx, table f32 [positions][n], n): x += the table's line of each row's position"""
    x, ldx, table, n = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3)
    rows, positions = variable(job, ROWS), variable(job, ROW_POSITION)
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            line = table + ld_i64(positions + 8 * r) * 4 * n
            add_scaled(x + r * ldx, line, splat_f32(nb.float32(1.0)), n)


@Op
def temper_queries(a, job, ith, nth, ctl):
    """(x, ldx, n, scale f32, length, offset): x[:n] *= 1 + scale * ln(1 + (position + offset) // length)"""
    x, ldx, n, scale, length, offset = (
        arg(a, 0),
        arg(a, 1),
        arg(a, 2),
        ld_f32(a + 8 * 3),
        arg(a, 4),
        arg(a, 5),
    )
    rows, positions = variable(job, ROWS), variable(job, ROW_POSITION)
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            turns = (ld_i64(positions + 8 * r) + offset) // length
            factor = nb.float32(1.0 + nb.float64(scale) * log_f64(nb.float64(1 + turns)))
            at = x + r * ldx
            for i in range(0, 4 * n, VB):
                store(at + i, load_f32(at + i) * splat_f32(factor))


@Op
def rotate_heads(a, job, ith, nth, ctl):
    """(x, ldx, heads, D, table, bytes per row, rotated dims, pairing): rope of the first heads, in place"""
    x, ldx, heads, d = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3)
    table, ld_table, n_rot, pairing, rows = arg(a, 4), arg(a, 5), arg(a, 6), arg(a, 7), variable(job, ROWS)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        for h in range(heads):
            at = x + j * ldx + 4 * h * d
            if pairing == NORM:
                rotate_norm(at, table + j * ld_table, n_rot)
            else:
                rotate_neox(at, table + j * ld_table, n_rot)
