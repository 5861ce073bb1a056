"""The MLPs of a mixture of experts, over the pairs of a routing (see `routing`).

Each expert is a matrix product of its own, with its own columns: results depend neither on how many rows it
got nor on which. One row in the step makes each of its experts a matrix-vector product.

Bound: the weights of the experts in use, read once per step; with some 8 rows for each, arithmetic.
"""

import numba as nb

from runtime.kernels.activations import activate
from runtime.kernels.job import ROWS
from runtime.kernels.matmul import multiply_alone
from runtime.kernels.quantise import column_bytes, quantise
from runtime.kernels.routing import (
    T_ACTIVE,
    T_EXPERT,
    T_K,
    T_PAIR,
    T_PLACE,
    T_START,
    T_WEIGHTS,
)
from runtime.kernels.rows import add_scaled
from runtime.kernels.simd import (
    LANES,
    VB,
    fma,
    inline,
    ld_f32,
    ld_i32,
    ld_i64,
    load_f32,
    splat_f32,
    st_i64,
    store,
)
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.team import grab

_ITEMS_PER_THREAD = 8  # of a product, so that threads end together


@nb.njit(**inline)
def n_pairs(job, t):
    return variable(job, ROWS) * arg(t, T_K)


@nb.njit(**inline)
def quantise_place(t, place, src, n, dst, kind):
    """f32 [n] at src -> the column of a place in its expert's tiles."""
    at = arg(t, T_START) + 4 * ld_i32(arg(t, T_EXPERT) + 4 * place)
    first, end = nb.int64(ld_i32(at)), nb.int64(ld_i32(at + 4))
    column, stride = place - first, 4 * n
    tiles = dst + first * column_bytes(kind, n)
    quantise(src - column * stride, stride, column, column + 1, end - first, n, tiles, kind)


@Op
def gather_quant(a, job, ith, nth, ctl):
    """(x, ldx, n, dst, activation kind, routing, weighed): each pair's row, weighed if asked for"""
    x, ldx, n, dst, kind, t = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5)
    weighed, pairs, k = arg(a, 6), n_pairs(job, t), arg(t, T_K)
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        place = grab(ctl, nth, 1)
        if place >= pairs:
            break
        pair = nb.int64(ld_i32(arg(t, T_PAIR) + 4 * place))
        row = x + pair // k * ldx
        if weighed:
            weight = splat_f32(ld_f32(arg(t, T_WEIGHTS) + 4 * pair))
            for i in range(0, 4 * n, VB):
                store(tmp + i, load_f32(row + i) * weight)
            row = tmp
        quantise_place(t, place, row, n, dst, kind)


@Op
def matmul_experts(a, job, ith, nth, ctl):
    """(matmul op, weights, bytes per expert, panels per expert, bytes per panel, x, bytes per column, k, out,
    ldo, routing): out[place] = x[place] . the place's expert

    For `matmul_unpacked` its own parameters follow: (matmul op, packer, rows per expert, bytes per packed
    panel); the bytes per expert and panel are then those in the file.

    An item is a range of panels of one expert, for which the matmul op runs as if in a team of one.
    """
    op, w, expert_bytes, n_panels, panel_bytes = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    x, x_bytes, k, out, ldo, t = arg(a, 5), arg(a, 6), arg(a, 7), arg(a, 8), arg(a, 9), arg(a, 10)
    at = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    n_active = nb.int64(ld_i32(arg(t, T_ACTIVE)))
    chunk = n_active * n_panels // (_ITEMS_PER_THREAD * nth) // 4 * 4
    chunk = max(nb.int64(4), min(chunk, n_panels))
    parts = (n_panels + chunk - 1) // chunk
    while True:
        item = grab(ctl, nth, 1)
        if item >= n_active * parts:
            break
        expert = nb.int64(ld_i32(arg(t, T_ACTIVE) + 4 * (1 + item // parts)))
        first = nb.int64(ld_i32(arg(t, T_START) + 4 * expert))
        m = nb.int64(ld_i32(arg(t, T_START) + 4 * (expert + 1))) - first
        p0 = item % parts * chunk
        st_i64(at + 64, arg(a, 11))
        st_i64(at + 72, arg(a, 12))
        st_i64(at + 80, arg(a, 13) - p0 * LANES)
        st_i64(at + 88, arg(a, 14))
        panels, n = w + expert * expert_bytes + p0 * panel_bytes, min(n_panels, p0 + chunk) - p0
        multiply_alone(op, at, panels, n, x + first * x_bytes, k, out + first * ldo + p0 * VB, ldo, 0, m)


@Op
def bias_experts(a, job, ith, nth, ctl):
    """(x, ldx, bias, bytes per expert, n, routing): x[place] += the bias of the place's expert"""
    x, ldx, bias, ld_bias, n, t = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5)
    pairs = n_pairs(job, t)
    while True:
        place = grab(ctl, nth, 1)
        if place >= pairs:
            break
        line = bias + ld_i32(arg(t, T_EXPERT) + 4 * place) * ld_bias
        add_scaled(x + place * ldx, line, splat_f32(nb.float32(1.0)), n)


@Op
def activate_experts(a, job, ith, nth, ctl):
    """(x, ldx, up, n, activation, limit f32, dst, activation kind, routing): as `activate_quant`, by place"""
    x, ldx, up, n, kind, limit = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), ld_f32(a + 8 * 5)
    dst, act_kind, t = arg(a, 6), arg(a, 7), arg(a, 8)
    pairs = n_pairs(job, t)
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        place = grab(ctl, nth, 1)
        if place >= pairs:
            break
        gate = x + place * ldx
        activate(kind, limit, gate, gate + up, n, tmp)
        quantise_place(t, place, tmp, n, dst, act_kind)


@Op
def combine_experts(a, job, ith, nth, ctl):
    """(x, ldx, y, ldy, n, scale f32, weighed, routing): x += scale * sum of a row's y, weighed if asked for

    Experts are summed in ascending order.
    """
    x, ldx, y, ldy, n = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    scale, weighed, t = splat_f32(ld_f32(a + 8 * 5)), arg(a, 6), arg(a, 7)
    rows, k = variable(job, ROWS), arg(t, T_K)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        places, weights = arg(t, T_PLACE) + 4 * k * j, arg(t, T_WEIGHTS) + 4 * k * j
        for i in range(0, 4 * n, VB):
            total = splat_f32(nb.float32(0.0))
            for s in range(k):
                v = load_f32(y + ld_i32(places + 4 * s) * ldy + i)
                weight = splat_f32(ld_f32(weights + 4 * s) if weighed else nb.float32(1.0))
                total = fma(v, weight, total)
            at = x + j * ldx + i
            store(at, fma(total, scale, load_f32(at)))
