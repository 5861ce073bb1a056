"""One key block of attention: scores of a tile of rows, online softmax, weighted values.

See `attention` for how blocks make up partitions, and those a query's result.
"""

import numba as nb

from runtime.kernels.attention_layer import (
    A_BIAS,
    A_DK,
    A_DV,
    A_MASK,
    A_SOFTCAP,
    A_SPAN,
    A_WINDOW,
    CHUNKED,
    SYMMETRIC,
)
from runtime.kernels.simd import (
    LANES,
    VB,
    f32v,
    fma1,
    hmax,
    hsum,
    inline,
    lane_index,
    ld_f32,
    load_f32,
    prefetch,
    select,
    splat_f32,
    splat_i32,
    st_f32,
    store,
    vge,
    vle,
    vmax,
)
from runtime.kernels.tape import arg
from runtime.kernels.tiles import make_tile_zero, tile_fma_splat, tile_load, tile_store
from runtime.kernels.vecmath import vexp, vtanh
from runtime.memory.layout import TILE

KEY_BLOCK = 64
NARROW = 4  # rows of the smaller tile
EMPTY = -1e30  # "no key seen yet"; finite, so that differences stay numbers


called = {
    "nogil": True,
    "error_model": "numpy",
}  # large enough that a call costs nothing, and inlining compile time


@nb.njit(**inline)
def mask_range(v, first, last, fill):
    """Lanes whose index lies outside [first, last] become `fill`."""
    lane = lane_index()
    other = splat_f32(fill)
    v = select(vge(lane, splat_i32(nb.int32(first))), v, other)
    return select(vle(lane, splat_i32(nb.int32(last))), v, other)


@nb.njit(**inline)
def first_key(a, position):
    """The first position that a query at `position` sees."""
    mask, window = arg(a, A_MASK), arg(a, A_WINDOW)
    if window == 0:
        return nb.int64(0)
    if mask == CHUNKED:
        return position // window * window
    if mask == SYMMETRIC:
        return max(nb.int64(0), position - window // 2)
    return max(nb.int64(0), position - window + 1)


@nb.njit(**inline)
def last_key(a, position, run_end):
    """The last position that a query at `position` sees; `run_end` follows the last one of its run."""
    if arg(a, A_MASK) != SYMMETRIC:
        return position
    window = arg(a, A_WINDOW)
    return min(run_end - 1, position + window // 2) if window > 0 else run_end - 1


@nb.njit(**inline)
def bias_at(a, head, position, key):
    """Address of what is added to a query's scores from `key` on; 0 for nothing."""
    table, span = arg(a, A_BIAS), arg(a, A_SPAN)
    return table + 4 * (2 * span * head + span + key - position) if table != 0 else table


@nb.njit(**called)
def softmax_row(row, n_tiles, first, last, softcap, bias, state, o, dv):
    """Scores become weights, what was accumulated before is rescaled; keys outside [first, last] get 0."""
    top = splat_f32(nb.float32(EMPTY))
    for t in range(n_tiles):
        v = load_f32(row + VB * t)
        if softcap > 0:
            v = vtanh(v * splat_f32(nb.float32(1.0) / softcap)) * splat_f32(softcap)
        if bias != 0:
            v = v + load_f32(bias + VB * t)
        v = mask_range(v, first - t * TILE, last - t * TILE, nb.float32(EMPTY))
        store(row + VB * t, v)
        top = vmax(top, v)
    m0 = ld_f32(state)
    m1 = max(m0, hmax(top))
    shrink = vexp(splat_f32(m0 - m1))
    total = splat_f32(nb.float32(0.0))
    for t in range(n_tiles):
        p = vexp(load_f32(row + VB * t) - splat_f32(m1))
        p = mask_range(p, first - t * TILE, last - t * TILE, nb.float32(0.0))
        store(row + VB * t, p)
        total = total + p
    st_f32(state, m1)
    st_f32(state + 4, fma1(ld_f32(state + 4), hmax(shrink), hsum(total)))
    for d in range(0, dv, LANES):
        store(o + 4 * d, load_f32(o + 4 * d) * shrink)


def make_key_block(nq, size, load, decoded):
    """One key block of one kv head for `nq` rows: scores, softmax, values.

    Keys of a 16-position tile lie at ``keys + t * k_step``, its values at ``values + t * v_step``.
    """
    zero = make_tile_zero(f32v, nq)
    ahead = nq <= NARROW and not decoded  # decode streams the cache from memory

    @nb.njit(**inline)
    def scores(q, tile, dk, s, step):
        """s[j][0:32] = the scores of two key tiles."""
        a0, a1 = zero(), zero()
        second = tile + step
        for d in range(dk):
            at = d * LANES * size
            a0 = tile_fma_splat(a0, load(tile + at), q + 4 * d, 4 * dk)
            a1 = tile_fma_splat(a1, load(second + at), q + 4 * d, 4 * dk)
            if ahead:
                prefetch(tile + 4 * step + at)
                prefetch(second + 4 * step + at)
        tile_store(a0, s, KEY_BLOCK * 4)
        tile_store(a1, s + VB, KEY_BLOCK * 4)

    @nb.njit(**inline)
    def add_values(o, values, step, n_keys, dv, s):
        """o[j] += weights . values; keys ascending."""
        d = 0
        while d < dv:
            pair = d + LANES < dv
            a0 = tile_load(zero(), o + 4 * d, 4 * dv)
            a1 = a0
            if pair:
                a1 = tile_load(zero(), o + 4 * d + VB, 4 * dv)
            for t in range((n_keys + TILE - 1) // TILE):
                v = values + t * step + d * size
                w = s + VB * t
                for i in range(min(TILE, n_keys - t * TILE)):
                    a0 = tile_fma_splat(a0, load(v), w + 4 * i, KEY_BLOCK * 4)
                    if pair:
                        a1 = tile_fma_splat(a1, load(v + LANES * size), w + 4 * i, KEY_BLOCK * 4)
                    if ahead:
                        prefetch(v + 4 * step)
                    v += dv * size
            tile_store(a0, o + 4 * d, 4 * dv)
            if pair:
                tile_store(a1, o + 4 * d + VB, 4 * dv)
            d += 2 * LANES

    @nb.njit(**called)
    def key_block(
        a, q, keys, k_step, values, v_step, k0, n_keys, start, run_end, r0, head0, group, o, state, s
    ):
        """`k0` is the first position, `n_keys` exist; row j is query ``start + (r0 + j) // group``."""
        dk, dv, softcap = arg(a, A_DK), arg(a, A_DV), ld_f32(a + 8 * A_SOFTCAP)
        n_tiles = (n_keys + TILE - 1) // TILE
        for t in range(0, n_tiles, 2):
            scores(q, keys + t * k_step, dk, s + VB * t, k_step)
        for j in range(nq):
            position = start + (r0 + j) // group
            first, last = first_key(a, position) - k0, last_key(a, position, run_end) - k0
            bias = bias_at(a, head0 + (r0 + j) % group, position, k0)
            softmax_row(
                s + j * KEY_BLOCK * 4, n_tiles, first, last, softcap, bias, state + 8 * j, o + 4 * j * dv, dv
            )
        add_values(o, values, v_step, n_keys, dv, s)

    return key_block
