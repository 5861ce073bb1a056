"""What attention over shared keys does with one unit, up to 16 heads of a query: scores, softmax, values.

A lane is a head. A record is a unit's softmax state and what it has gathered: max [16], sum [16], then
values [16][dv], all f32. See `latent` for what units and records are parts of.
"""

import numba as nb

from runtime.kernels.simd import (
    LANES,
    VB,
    f32v,
    fma,
    inline,
    ld_f32,
    load_f32,
    splat_f32,
    st_f32,
    store,
    vmax,
)
from runtime.kernels.tiles import make_tile_zero, tile_fma_splat, tile_load, tile_store, tile_transpose
from runtime.kernels.vecmath import vexp

EMPTY = -1e30  # "no key seen yet"; finite, so that differences stay numbers
ROWS_OF_TILE = 8  # keys, or heads, of a register tile
STATE = 2 * VB  # of a record, before its values

called = {"nogil": True, "error_model": "numpy"}
zero = make_tile_zero(f32v, ROWS_OF_TILE)
zero_square = make_tile_zero(f32v, LANES)


@nb.njit(**called)
def load_unit(src, heads, d, scale, q):
    """q[d][16] = scale * src[heads][d] turned; lanes without a head are zero."""
    if heads == LANES:
        for i in range(0, d, LANES):
            tile_store(tile_transpose(tile_load(zero_square(), src + 4 * i, 4 * d)), q + VB * i, VB)
        for i in range(0, VB * d, VB):
            store(q + i, load_f32(q + i) * splat_f32(scale))
        return
    for i in range(d):
        store(q + VB * i, splat_f32(nb.float32(0.0)))
        for h in range(heads):
            st_f32(q + VB * i + 4 * h, ld_f32(src + 4 * (h * d + i)) * scale)


@nb.njit(**called)
def scores_of_two(q0, q1, keys, d, k0, k1, s0, s1):
    """s[key] of two units for keys [k0, k1), multiples of 8."""
    for k in range(k0, k1, ROWS_OF_TILE):
        a0, a1, row = zero(), zero(), keys + 4 * d * k
        for i in range(d):
            a0 = tile_fma_splat(a0, load_f32(q0 + VB * i), row + 4 * i, 4 * d)
            a1 = tile_fma_splat(a1, load_f32(q1 + VB * i), row + 4 * i, 4 * d)
        tile_store(a0, s0 + VB * k, VB)
        tile_store(a1, s1 + VB * k, VB)


@nb.njit(**called)
def scores_of_one(q, keys, d, k0, k1, s):
    """As `scores_of_two`, 16 keys at a time where there are as many."""
    k = k0
    while k < k1:
        a0, a1, row = zero(), zero(), keys + 4 * d * k
        if k + LANES <= k1:
            for i in range(d):
                v = load_f32(q + VB * i)
                a0 = tile_fma_splat(a0, v, row + 4 * i, 4 * d)
                a1 = tile_fma_splat(a1, v, row + 4 * (ROWS_OF_TILE * d + i), 4 * d)
            tile_store(a1, s + VB * (k + ROWS_OF_TILE), VB)
        else:
            for i in range(d):
                a0 = tile_fma_splat(a0, load_f32(q + VB * i), row + 4 * i, 4 * d)
        tile_store(a0, s + VB * k, VB)
        k += LANES


@nb.njit(**inline)
def rescale(values, factors, dv):
    """values[h] *= factors[h], f32 [16][dv] and f32 [16]."""
    for h in range(LANES):
        factor, at = splat_f32(ld_f32(factors + 4 * h)), values + 4 * dv * h
        for i in range(0, 4 * dv, VB):
            store(at + i, load_f32(at + i) * factor)


@nb.njit(**called)
def softmax(s, k0, k1, record, factors, dv):
    """Scores of keys [k0, k1) become weights; what the record has is rescaled."""
    before = load_f32(record)
    top = before
    for k in range(k0, k1):
        top = vmax(load_f32(s + VB * k), top)
    total = splat_f32(nb.float32(0.0))
    for k in range(k0, k1):
        p = vexp(load_f32(s + VB * k) - top)
        store(s + VB * k, p)
        total = total + p
    shrink = vexp(before - top)
    store(record, top)
    store(record + VB, fma(load_f32(record + VB), shrink, total))
    store(factors, shrink)
    rescale(record + STATE, factors, dv)


@nb.njit(**called)
def add_values(s, keys, d, k0, k1, heads, values, dv):
    """values[h] += weight of key k for head h * K[k][:dv], keys ascending."""
    for h in range(0, heads, ROWS_OF_TILE):
        w = s + 4 * h
        for i in range(0, dv, 2 * LANES):
            at = values + 4 * (h * dv + i)
            a0 = tile_load(zero(), at, 4 * dv)
            if i + LANES < dv:
                a1 = tile_load(zero(), at + VB, 4 * dv)
                for k in range(k0, k1):
                    row = keys + 4 * (k * d + i)
                    a0 = tile_fma_splat(a0, load_f32(row), w + VB * k, 4)
                    a1 = tile_fma_splat(a1, load_f32(row + VB), w + VB * k, 4)
                tile_store(a1, at + VB, 4 * dv)
            else:
                for k in range(k0, k1):
                    a0 = tile_fma_splat(a0, load_f32(keys + 4 * (k * d + i)), w + VB * k, 4)
            tile_store(a0, at, 4 * dv)


@nb.njit(**inline)
def clear(record, dv):
    """An empty softmax state with no values."""
    store(record, splat_f32(nb.float32(EMPTY)))
    store(record + VB, splat_f32(nb.float32(0.0)))
    for i in range(STATE, STATE + VB * dv, VB):
        store(record + i, splat_f32(nb.float32(0.0)))


@nb.njit(**called)
def combine(total, record, factors, dv):
    """Add a partition's record to the running total."""
    m0, m = load_f32(total), load_f32(record)
    m1 = vmax(m0, m)
    keep, add = vexp(m0 - m1), vexp(m - m1)
    store(total, m1)
    store(total + VB, fma(load_f32(record + VB), add, load_f32(total + VB) * keep))
    store(factors, keep)
    store(factors + VB, add)
    for h in range(LANES):
        k, f = splat_f32(ld_f32(factors + 4 * h)), splat_f32(ld_f32(factors + VB + 4 * h))
        for i in range(STATE + 4 * dv * h, STATE + 4 * dv * (h + 1), VB):
            store(total + i, fma(load_f32(record + i), f, load_f32(total + i) * k))
