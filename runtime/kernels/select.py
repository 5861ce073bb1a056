"""Greedy choice, top-k and log-sum-exp of one row of logits: f32 values at an address.

All run without the GIL. Ties go to the lowest index; a value that is not a number is never chosen.
"""

import numba as nb

from runtime.kernels.simd import (
    LANES,
    VB,
    entry,
    hmax,
    hmin,
    hsum,
    inline,
    lane_index,
    ld_f32,
    ld_i32,
    load_f32,
    select,
    splat_f32,
    splat_i32,
    st_f32,
    st_i32,
    vany,
    veq,
    vgt,
    vmax,
)
from runtime.kernels.vecmath import log_f64, vexp

_NONE = 0x7FFFFFFF
_MINUS_INFINITY = nb.float32(float("-inf"))
_PARTITION = 4096


@nb.njit(**entry)
def argmax(logits, n):
    """Index of the largest of n values; 0 if there is none."""
    best, where = splat_f32(_MINUS_INFINITY), splat_i32(nb.int32(_NONE))
    index, step = lane_index(), splat_i32(nb.int32(LANES))
    whole = n // LANES * LANES
    for i in range(0, 4 * whole, VB):
        v = load_f32(logits + i)
        larger = vgt(v, best)
        best, where = select(larger, v, best), select(larger, index, where)
        index = index + step
    top = hmax(best)
    found = nb.int64(hmin(select(veq(best, splat_f32(top)), where, splat_i32(nb.int32(_NONE)))))
    for i in range(whole, n):
        x = ld_f32(logits + 4 * i)
        if x > top:
            top, found = x, i
    return 0 if found == _NONE else found


@nb.njit(**inline)
def _worse(ids, values, a, b):
    """Whether candidate a ranks below candidate b."""
    x, y = ld_f32(values + 4 * a), ld_f32(values + 4 * b)
    return x < y or (x == y and ld_i32(ids + 4 * a) > ld_i32(ids + 4 * b))


@nb.njit(**inline)
def _swap(ids, values, a, b):
    x, i = ld_f32(values + 4 * a), ld_i32(ids + 4 * a)
    st_f32(values + 4 * a, ld_f32(values + 4 * b))
    st_i32(ids + 4 * a, ld_i32(ids + 4 * b))
    st_f32(values + 4 * b, x)
    st_i32(ids + 4 * b, i)


@nb.njit(**inline)
def _sink(ids, values, at, count):
    """Restore the heap, worst candidate first, below `at`."""
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and _worse(ids, values, child + 1, child):
            child += 1
        if not _worse(ids, values, child, at):
            break
        _swap(ids, values, at, child)
        at = child


@nb.njit(**inline)
def _offer(ids, values, count, k, i, x):
    """Put (i, x) among the best k; returns their number."""
    if count < k:
        if x != x:
            return count
        st_f32(values + 4 * count, x)
        st_i32(ids + 4 * count, nb.int32(i))
        at = count
        while at > 0 and _worse(ids, values, at, (at - 1) // 2):
            _swap(ids, values, at, (at - 1) // 2)
            at = (at - 1) // 2
        return count + 1
    if x > ld_f32(values):
        st_f32(values, x)
        st_i32(ids, nb.int32(i))
        _sink(ids, values, 0, count)
    return count


@nb.njit(**inline)
def offer_all(values, first, n, k, count, ids_out, values_out):
    """Put n values of a longer row, from index `first` on, among its k largest, `count` of which are known.

    Returns how many there are then: a heap of int32 ids and f32 values, the least at its top. Values come in
    the order of their indices. One comparison per 16 of them, and a heap operation per newcomer.
    """
    i = 0
    while i < n and count < k:
        count = _offer(ids_out, values_out, count, k, first + i, ld_f32(values + 4 * i))
        i += 1
    while i + LANES <= n:
        if vany(vgt(load_f32(values + 4 * i), splat_f32(ld_f32(values_out)))):
            for j in range(i, i + LANES):
                count = _offer(ids_out, values_out, count, k, first + j, ld_f32(values + 4 * j))
        i += LANES
    while i < n:
        count = _offer(ids_out, values_out, count, k, first + i, ld_f32(values + 4 * i))
        i += 1
    return count


@nb.njit(**entry)
def top_k(logits, n, k, ids_out, values_out):
    """The k largest of n values, descending: int32 ids and f32 values [k]. Returns how many there are.

    Of a row of a vocabulary about k * ln(n / k) values are newcomers.
    """
    if k <= 0:
        return 0
    count = offer_all(logits, 0, n, k, 0, ids_out, values_out)
    for last in range(count - 1, 0, -1):
        _swap(ids_out, values_out, 0, last)
        _sink(ids_out, values_out, 0, last)
    return count


@nb.njit(**inline)
def _largest(logits, n):
    top = splat_f32(_MINUS_INFINITY)
    whole = n // LANES * LANES
    for i in range(0, 4 * whole, VB):
        top = vmax(load_f32(logits + i), top)
    best = hmax(top)
    for i in range(4 * whole, 4 * n, 4):
        best = max(best, ld_f32(logits + i))
    return best


@nb.njit(**entry)
def log_sum_exp(logits, n):
    """log(sum(exp(values))) of n finite values, -inf among them allowed.

    Sums of 4096 in 16 lanes, combined in order in float64: threads could share them without changing a bit.
    """
    top = _largest(logits, n)
    shift, total = splat_f32(top), nb.float64(0.0)
    for first in range(0, n, _PARTITION):
        last = min(n, first + _PARTITION)
        whole = first + (last - first) // LANES * LANES
        part = splat_f32(nb.float32(0.0))
        for i in range(4 * first, 4 * whole, VB):
            part = part + vexp(load_f32(logits + i) - shift)
        total += nb.float64(hsum(part))
        for i in range(4 * whole, 4 * last, 4):
            total += nb.float64(hmax(vexp(splat_f32(ld_f32(logits + i)) - shift)))
    return nb.float64(top) + log_f64(total)
