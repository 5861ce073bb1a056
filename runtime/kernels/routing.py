"""Which experts each row goes to, and the order in which experts then see their rows.

A row and one of its experts make a pair. Pairs are numbered twice: by row (``row * k + slot``, experts of a
row ascending) and by place: expert ascending, rows of an expert ascending. So an expert's rows lie side by
side, and a row's results are summed in the order of its experts, whatever else is in the step.

The tables of a routing, at addresses that its descriptor (int64 words) names:

    T_IDS, T_WEIGHTS    i32, f32 [rows][k]    experts of a row and what their results count
    T_PLACE             i32 [rows][k]         place of each pair
    T_PAIR, T_EXPERT    i32 [places]          pair and expert of each place
    T_START             i32 [experts + 1]     first place of each expert
    T_ACTIVE            i32 [1 + experts]     how many experts have rows, and which
"""

import numba as nb

from runtime.kernels.job import ROWS, TOKENS
from runtime.kernels.simd import (
    LANES,
    VB,
    f32_from_bits,
    hmax,
    hsum,
    inline,
    ld_f32,
    ld_i32,
    ld_i64,
    load_f32,
    splat_f32,
    st_f32,
    st_i32,
    store,
    vdiv,
    vmax,
    vsqrt,
)
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.kernels.vecmath import vexp, vsigmoid, vsoftplus
from runtime.team import grab

T_K, T_EXPERTS, T_IDS, T_WEIGHTS, T_PLACE, T_PAIR, T_EXPERT, T_START, T_ACTIVE = range(9)
T_WORDS = 9

SOFTMAX, SIGMOID, SOFTMAX_OF_SELECTED, SQRT_SOFTPLUS = 1, 2, 3, 4  # as GGUF's expert_gating_func numbers them

_NEVER = -1e30  # below every score
_SMALLEST_SUM = 6.103515625e-5  # of weights to divide by: the smallest normal f16, as the reference has it


@nb.njit(**inline)
def softmax(x, n):
    """In place, of f32 [n] in memory that is filled up to whole vectors; what follows n becomes 0."""
    for i in range(n, (n + LANES - 1) // LANES * LANES):
        st_f32(x + 4 * i, nb.float32(_NEVER))
    top = splat_f32(nb.float32(_NEVER))
    for i in range(0, 4 * n, VB):
        top = vmax(load_f32(x + i), top)
    top = splat_f32(hmax(top))
    total = splat_f32(nb.float32(0.0))
    for i in range(0, 4 * n, VB):
        e = vexp(load_f32(x + i) - top)
        store(x + i, e)
        total = total + e
    total = splat_f32(hsum(total))
    for i in range(0, 4 * n, VB):
        store(x + i, vdiv(load_f32(x + i), total))


@nb.njit(**inline)
def drop_groups(scores, n, groups, used, tmp):
    """Only the `used` groups stay whose two best scores sum highest, ties to the lowest."""
    size = n // groups
    for g in range(groups):
        first = second = nb.float32(_NEVER)
        for i in range(g * size, (g + 1) * size):
            s = ld_f32(scores + 4 * i)
            if s > first:
                first, second = s, first
            elif s > second:
                second = s
        st_f32(tmp + 4 * g, first + second)
    for g in range(groups):
        mine = ld_f32(tmp + 4 * g)
        better = 0
        for other in range(groups):
            theirs = ld_f32(tmp + 4 * other)
            if theirs > mine or (theirs == mine and other < g):
                better += 1
        if better >= used:
            for i in range(g * size, (g + 1) * size):
                st_f32(scores + 4 * i, nb.float32(_NEVER))


@nb.njit(**inline)
def select_top(scores, n, k, ids, kept):
    """The indices of the k largest of f32 [n], ties to the lowest; `kept` is scratch of k floats."""
    count = nb.int64(0)
    for i in range(n):
        s = ld_f32(scores + 4 * i)
        if count < k or s > ld_f32(kept + 4 * (k - 1)):
            at = min(count, k - 1)
            while at > 0 and s > ld_f32(kept + 4 * (at - 1)):
                st_f32(kept + 4 * at, ld_f32(kept + 4 * (at - 1)))
                st_i32(ids + 4 * at, ld_i32(ids + 4 * (at - 1)))
                at -= 1
            st_f32(kept + 4 * at, s)
            st_i32(ids + 4 * at, nb.int32(i))
            count = min(count + 1, k)


@nb.njit(**inline)
def ascend(ids, k):
    """Sort i32 [k]."""
    for i in range(1, k):
        value = ld_i32(ids + 4 * i)
        at = nb.int64(i)
        while at > 0 and ld_i32(ids + 4 * (at - 1)) > value:
            st_i32(ids + 4 * at, ld_i32(ids + 4 * (at - 1)))
            at -= 1
        st_i32(ids + 4 * at, value)


@nb.njit(**inline)
def weigh(p, ids, k, gating, normalise, scale, weights, tmp):
    """f32 [k] at `weights` from what each expert got, at p."""
    for s in range(k):
        st_f32(tmp + 4 * s, ld_f32(p + 4 * ld_i32(ids + 4 * s)))
    if gating == SOFTMAX_OF_SELECTED:
        softmax(tmp, k)
    factor = scale
    if normalise:
        total = nb.float32(0.0)
        for s in range(k):
            total = total + ld_f32(tmp + 4 * s)
        factor = scale / max(total, nb.float32(_SMALLEST_SUM))
    for s in range(k):
        st_f32(weights + 4 * s, ld_f32(tmp + 4 * s) * factor)


@nb.njit(**inline)
def score(logits, n, gating, p):
    """f32 [n] at p, in whole vectors: what each expert gets by its logit."""
    for i in range(0, 4 * n, VB):
        v = load_f32(logits + i)
        if gating == SIGMOID:
            v = vsigmoid(v)
        elif gating == SQRT_SOFTPLUS:
            v = vsqrt(vsoftplus(v))
        store(p + i, v)
    if gating == SOFTMAX:
        softmax(p, n)


@Op
def route(a, job, ith, nth, ctl):
    """(logits, ld, routing, gating, bias, normalise, scale f32, groups, groups used): experts of each row

    The bias (f32 [experts], 0 for none) takes part in the selection, not in the weights.
    """
    logits, ld, t, gating, bias, normalise = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5)
    scale, groups, used, rows = f32_from_bits(arg(a, 6)), arg(a, 7), arg(a, 8), variable(job, ROWS)
    k, n = arg(t, T_K), arg(t, T_EXPERTS)
    padded = 4 * ((n + LANES - 1) // LANES * LANES)
    p = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    scores, tmp = p + padded, p + 2 * padded
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        ids = arg(t, T_IDS) + 4 * k * j
        score(logits + j * ld, n, gating, p)
        for i in range(0, padded, VB):
            v = load_f32(p + i)
            if bias != 0:
                v = v + load_f32(bias + i)
            store(scores + i, v)
        if groups > used:
            drop_groups(scores, n, groups, used, tmp)
        select_top(scores, n, k, ids, tmp)
        ascend(ids, k)
        weigh(p, ids, k, gating, normalise, scale, arg(t, T_WEIGHTS) + 4 * k * j, tmp)


@Op
def route_by_token(a, job, ith, nth, ctl):
    """(logits, ld, routing, gating, table, normalise, scale f32): experts of each row by its token id

    The table, i32 [vocabulary][k], says which; the logits say how much each counts.
    """
    logits, ld, t, gating, table, normalise = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5)
    scale, rows = f32_from_bits(arg(a, 6)), variable(job, ROWS)
    k, n = arg(t, T_K), arg(t, T_EXPERTS)
    p = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    tmp = p + 4 * ((n + LANES - 1) // LANES * LANES)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        ids = arg(t, T_IDS) + 4 * k * j
        line = table + 4 * k * ld_i32(variable(job, TOKENS) + 4 * j)
        for s in range(k):
            st_i32(ids + 4 * s, ld_i32(line + 4 * s))
        ascend(ids, k)
        score(logits + j * ld, n, gating, p)
        weigh(p, ids, k, gating, normalise, scale, arg(t, T_WEIGHTS) + 4 * k * j, tmp)


@Op
def scale_weights(a, job, ith, nth, ctl):
    """(scales f32 [experts], routing): what an expert's results count times the expert's scale"""
    scales, t, rows = arg(a, 0), arg(a, 1), variable(job, ROWS)
    k = arg(t, T_K)
    while True:
        j = grab(ctl, nth, 8)
        if j >= rows:
            break
        for i in range(4 * k * j, 4 * k * min(rows, j + 8), 4):
            at = arg(t, T_WEIGHTS) + i
            st_f32(at, ld_f32(at) * ld_f32(scales + 4 * ld_i32(arg(t, T_IDS) + i)))


@Op
def dispatch(a, job, ith, nth, ctl):
    """(routing): number the pairs of the step by expert: one thread, a few instructions per pair"""
    t = arg(a, 0)
    n, pairs = arg(t, T_EXPERTS), variable(job, ROWS) * arg(t, T_K)
    ids, start, active = arg(t, T_IDS), arg(t, T_START), arg(t, T_ACTIVE)
    if ith == 0:
        for e in range(n + 1):
            st_i32(start + 4 * e, nb.int32(0))
        for i in range(pairs):
            at = start + 4 * (ld_i32(ids + 4 * i) + 1)
            st_i32(at, nb.int32(ld_i32(at) + 1))
        n_active = nb.int64(0)
        for e in range(n):
            count = ld_i32(start + 4 * (e + 1))
            if count > 0:
                n_active += 1
                st_i32(active + 4 * n_active, nb.int32(e))
            st_i32(start + 4 * (e + 1), nb.int32(ld_i32(start + 4 * e) + count))
        st_i32(active, nb.int32(n_active))
        # each expert's start counts up while its pairs are placed, and is then the next one's: shift it back
        for i in range(pairs):
            e = ld_i32(ids + 4 * i)
            place = ld_i32(start + 4 * e)
            st_i32(start + 4 * e, nb.int32(place + 1))
            st_i32(arg(t, T_PLACE) + 4 * i, place)
            st_i32(arg(t, T_PAIR) + 4 * place, nb.int32(i))
            st_i32(arg(t, T_EXPERT) + 4 * place, e)
        for e in range(n, 0, -1):
            st_i32(start + 4 * e, ld_i32(start + 4 * (e - 1)))
        st_i32(start, nb.int32(0))
