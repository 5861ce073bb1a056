"""Flash attention over the paged key/value pool.

Work is cut at absolute positions only, so a query's result depends on nothing but its own row and the keys it sees:

partition   256 positions = one block. Each starts from an empty softmax state and yields (max, sum, weighted values);
            partitions are combined in ascending order with one fixed formula.
key block   64 positions inside a partition; one online-softmax update each.

Whether the partitions of a query are computed by one thread one after the other (prefill) or by several threads
and combined after a barrier (decode over a long context) is a matter of scheduling: the arithmetic is the same.
Keys outside a row's window contribute an exact zero, so neither the tile a row shares with others nor a skipped
partition leaves a trace.

Rows of a tile are (query, head in group) pairs of one kv head: row r of a run is query ``r // group``.
Bound: f32 fma in prefill (2 Dk + 2 Dv flops per key and row), memory reads in decode.
"""

import numba as nb

from runtime.kernels.job import RUN_BLOCKS, RUN_LENGTH, RUN_ROW, RUN_START, RUN_TABLE, RUN_WORDS, RUNS
from runtime.kernels.kvtypes import KV_TYPES
from runtime.kernels.simd import (
    LANES,
    VB,
    f32v,
    fma,
    fma1,
    hmax,
    hsum,
    inline,
    lane_index,
    ld_f32,
    ld_i64,
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
from runtime.kernels.tape import JOB_SCRATCH, JOB_VARS, SCRATCH, Op, arg
from runtime.kernels.tiles import make_tile_zero, tile_fma_splat, tile_load, tile_store
from runtime.kernels.vecmath import vexp, vtanh
from runtime.memory.layout import BLOCK, TILE
from runtime.team import grab

KEY_BLOCK = 64
WIDE, NARROW = 8, 4  # rows of a tile: registers hold WIDE x 2 accumulators
EMPTY = -1e30  # "no key seen yet"; finite, so that differences stay numbers


@nb.njit(**inline)
def mask_range(v, first, last, fill):
    """Lanes whose index lies outside [first, last] become `fill`."""
    lane = lane_index()
    other = splat_f32(fill)
    v = select(vge(lane, splat_i32(nb.int32(first))), v, other)
    return select(vle(lane, splat_i32(nb.int32(last))), v, other)


def make_attend(nq, kv):
    """One partition, one kv head, `nq` rows: fills o [nq][Dv] (not normalised) and state [nq] of (max, sum)."""
    zero = make_tile_zero(f32v, nq)
    size, load = kv.size, kv.load
    ahead = nq <= NARROW  # decode streams the cache from memory

    @nb.njit(**inline)
    def scores(q, tile, dk, s, tile_bytes):
        """s[j][0:32] = the scores of two key tiles."""
        a0, a1 = zero(), zero()
        second = tile + tile_bytes
        for d in range(dk):
            at = d * LANES * size
            a0 = tile_fma_splat(a0, load(tile + at), q + 4 * d, 4 * dk)
            a1 = tile_fma_splat(a1, load(second + at), q + 4 * d, 4 * dk)
            if ahead:
                prefetch(tile + 4 * tile_bytes + at)
                prefetch(second + 4 * tile_bytes + at)
        tile_store(a0, s, KEY_BLOCK * 4)
        tile_store(a1, s + VB, KEY_BLOCK * 4)

    @nb.njit(**inline)
    def softmax_row(row, n_tiles, first, last, softcap, state, o, dv):
        """Turn a row of scores into weights, rescaling what was accumulated before."""
        top = splat_f32(nb.float32(EMPTY))
        for t in range(n_tiles):
            v = load_f32(row + VB * t)
            if softcap > 0:
                v = vtanh(v * splat_f32(nb.float32(1.0) / softcap)) * splat_f32(softcap)
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

    @nb.njit(**inline)
    def add_values(o, values, n_keys, dv, s, tile_bytes):
        """o[j] += weights . values; keys ascending."""
        d = 0
        while d < dv:
            pair = d + LANES < dv
            a0 = tile_load(zero(), o + 4 * d, 4 * dv)
            a1 = a0
            if pair:
                a1 = tile_load(zero(), o + 4 * d + VB, 4 * dv)
            for t in range((n_keys + TILE - 1) // TILE):
                v = values + t * tile_bytes + d * size
                w = s + VB * t
                for i in range(min(TILE, n_keys - t * TILE)):
                    a0 = tile_fma_splat(a0, load(v), w + 4 * i, KEY_BLOCK * 4)
                    if pair:
                        a1 = tile_fma_splat(a1, load(v + LANES * size), w + 4 * i, KEY_BLOCK * 4)
                    if ahead:
                        prefetch(v + 4 * tile_bytes)
                    v += dv * size
            tile_store(a0, o + 4 * d, 4 * dv)
            if pair:
                tile_store(a1, o + 4 * d + VB, 4 * dv)
            d += 2 * LANES

    @nb.njit(**inline)
    def attend(q, block, tile_bytes, dk, dv, n_keys, query0, r0, group, window, softcap, o, state, s):
        """`query0` is the position of the run's first query relative to the partition's first key."""
        for j in range(nq):
            st_f32(state + 8 * j, nb.float32(EMPTY))
            st_f32(state + 8 * j + 4, nb.float32(0.0))
            for d in range(0, dv, LANES):
                store(o + 4 * (j * dv + d), splat_f32(nb.float32(0.0)))
        for k0 in range(0, n_keys, KEY_BLOCK):
            nk = min(KEY_BLOCK, n_keys - k0)
            n_tiles = (nk + TILE - 1) // TILE
            tile = block + k0 // TILE * tile_bytes
            for t in range(0, n_tiles, 2):
                scores(q, tile + t * tile_bytes, dk, s + VB * t, tile_bytes)
            for j in range(nq):
                last = query0 + (r0 + j) // group - k0
                first = last - window + 1 if window > 0 else nb.int64(0)
                softmax_row(
                    s + j * KEY_BLOCK * 4, n_tiles, first, last, softcap, state + 8 * j, o + 4 * j * dv, dv
                )
            add_values(o, tile + dk * TILE * size, nk, dv, s, tile_bytes)

    return attend


@nb.njit(**inline)
def combine(total, total_state, o, state, dv):
    """Add one partition's (max, sum, weighted values) to the running total of a row."""
    m0, m = ld_f32(total_state), ld_f32(state)
    m1 = max(m0, m)
    keep, add = vexp(splat_f32(m0 - m1)), vexp(splat_f32(m - m1))
    st_f32(total_state, m1)
    st_f32(total_state + 4, fma1(ld_f32(state + 4), hmax(add), ld_f32(total_state + 4) * hmax(keep)))
    for d in range(0, 4 * dv, VB):
        store(total + d, fma(load_f32(o + d), add, load_f32(total + d) * keep))


@nb.njit(**inline)
def clear_total(total, total_state, dv):
    st_f32(total_state, nb.float32(EMPTY))
    st_f32(total_state + 4, nb.float32(0.0))
    for d in range(0, 4 * dv, VB):
        store(total + d, splat_f32(nb.float32(0.0)))


@nb.njit(**inline)
def normalise(total, total_state, out, dv):
    inverse = splat_f32(nb.float32(1.0) / ld_f32(total_state + 4))
    for d in range(0, 4 * dv, VB):
        store(out + d, load_f32(total + d) * inverse)


@nb.njit(**inline)
def gather_rows(x, ldx, row0, r0, n, nq, group, head0, dk, scale, q):
    """q[j] = scaled query of row r0 + j; rows past n are zero."""
    for j in range(nq):
        src = x + (row0 + (r0 + j) // group) * ldx + (head0 + (r0 + j) % group) * 4 * dk
        for d in range(0, 4 * dk, VB):
            v = splat_f32(nb.float32(0.0))
            if j < n:
                v = load_f32(src + d) * splat_f32(scale)
            store(q + 4 * dk * j + d, v)


# Words of an attention descriptor (int64 each, the floats as their 32 bits); its address is the op's argument.
(
    A_X,  # f32 rows that begin with the query heads [rows][>= heads * Dk]
    A_LDX,  # their bytes per row
    A_OUT,  # f32 [rows][heads * Dv]
    A_LDO,
    A_BASE,  # offset of the layer in a tile
    A_TILE,  # bytes of a tile (all layers of the group)
    A_GROUP,  # index of the cache group
    A_HEADS,
    A_KV_HEADS,
    A_DK,
    A_DV,
    A_WINDOW,  # positions a query sees, 0 for all
    A_SCALE,  # f32
    A_SOFTCAP,  # f32, 0 for none
    A_PARTIALS,  # scratch of split runs, see partial_bytes
    A_MAX_PARTS,  # partitions a sequence can have
) = range(16)
A_WORDS = 16


def tile_rows(group):
    """Rows of a one-query run, rounded to whole tiles."""
    return (group + WIDE - 1) // WIDE * WIDE


def partial_bytes(max_runs: int, kv_heads: int, group: int, dv: int, max_parts: int) -> int:
    """Bytes of the partial results of split runs: per run, kv head, partition and row a state and Dv floats."""
    return max_runs * kv_heads * max_parts * int(tile_rows(group)) * (8 + 4 * dv)


_tile_rows = nb.njit(**inline)(tile_rows)


@nb.njit(**inline)
def is_split(n, parts):
    """A run of one query over several partitions spreads them over the team."""
    return n == 1 and parts > 1


@nb.njit(**inline)
def partial_at(a, run, kv_head, part):
    """Address of the partial results of one (run, kv head, partition): states [rows], then values [rows][Dv]."""
    rows = _tile_rows(arg(a, A_HEADS) // arg(a, A_KV_HEADS))
    index = (run * arg(a, A_KV_HEADS) + kv_head) * arg(a, A_MAX_PARTS) + part
    return arg(a, A_PARTIALS) + index * rows * (8 + 4 * arg(a, A_DV))


@nb.njit(**inline)
def first_part(a, oldest_query):
    """First partition that any key of the window of `oldest_query` (a position) lies in."""
    window = arg(a, A_WINDOW)
    return max(nb.int64(0), oldest_query - window + 1) // BLOCK if window > 0 else nb.int64(0)


@nb.njit(**inline)
def attention_item(wide, narrow, kv_bytes, a, run_at, run, h, r0, part, split, tmp):
    """One tile of rows of one kv head: over all its partitions, or over `part` alone when the run is split."""
    dk, dv, ldo = arg(a, A_DK), arg(a, A_DV), arg(a, A_LDO)
    group = arg(a, A_HEADS) // arg(a, A_KV_HEADS)
    row0, length, start = ld_i64(run_at + 8 * RUN_ROW), ld_i64(run_at + 8 * RUN_LENGTH), ld_i64(run_at + 8 * RUN_START)
    table = ld_i64(run_at + 8 * (RUN_BLOCKS + arg(a, A_GROUP)))
    n = min(nb.int64(WIDE), length * group - r0)
    nq = nb.int64(WIDE) if n > NARROW else nb.int64(NARROW)
    head_off = arg(a, A_BASE) + h * TILE * (dk + dv) * kv_bytes
    q = tmp
    s = q + 4 * WIDE * dk
    state = s + 4 * WIDE * KEY_BLOCK
    total_state = state + 8 * WIDE
    o = total_state + 8 * WIDE
    total = o + 4 * WIDE * dv
    gather_rows(arg(a, A_X), arg(a, A_LDX), row0, r0, n, nq, group, h * group, dk, ld_f32(a + 8 * A_SCALE), q)
    last = start + (r0 + n - 1) // group
    p0 = part if split else first_part(a, start + r0 // group)
    p1 = part + 1 if split else last // BLOCK + 1
    if split:
        state = partial_at(a, run, h, part) + 8 * r0
        o = partial_at(a, run, h, part) + 8 * _tile_rows(group) + 4 * dv * r0
    else:
        for j in range(nq):
            clear_total(total + 4 * dv * j, total_state + 8 * j, dv)
    for p in range(p0, p1):
        block = ld_i64(table + 8 * p) + head_off
        n_keys = min(nb.int64(BLOCK), last + 1 - p * BLOCK)
        if nq == WIDE:
            wide(q, block, arg(a, A_TILE), dk, dv, n_keys, start - p * BLOCK, r0, group, arg(a, A_WINDOW),
                 ld_f32(a + 8 * A_SOFTCAP), o, state, s)  # fmt: skip
        else:
            narrow(q, block, arg(a, A_TILE), dk, dv, n_keys, start - p * BLOCK, r0, group, arg(a, A_WINDOW),
                   ld_f32(a + 8 * A_SOFTCAP), o, state, s)  # fmt: skip
        if not split:
            for j in range(n):
                combine(total + 4 * dv * j, total_state + 8 * j, o + 4 * dv * j, state + 8 * j, dv)
    if not split:
        for j in range(n):
            head = h * group + (r0 + j) % group
            dst = arg(a, A_OUT) + (row0 + (r0 + j) // group) * ldo + head * 4 * dv
            normalise(total + 4 * dv * j, total_state + 8 * j, dst, dv)


@nb.njit(**inline)
def attention_op(wide, narrow, kv_bytes, args, job, ith, nth, ctl):
    a = arg(args, 0)
    runs, run_table = ld_i64(job + JOB_VARS + 8 * RUNS), ld_i64(job + JOB_VARS + 8 * RUN_TABLE)
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    kv_heads = arg(a, A_KV_HEADS)
    group = arg(a, A_HEADS) // kv_heads
    item = grab(ctl, nth, 1)
    base = nb.int64(0)
    for run in range(runs):
        run_at = run_table + run * 8 * RUN_WORDS
        length, start = ld_i64(run_at + 8 * RUN_LENGTH), ld_i64(run_at + 8 * RUN_START)
        tiles = (length * group + WIDE - 1) // WIDE
        p0, p1 = first_part(a, start), (start + length - 1) // BLOCK + 1
        split = is_split(length, p1 - p0)
        parts = p1 - p0 if split else nb.int64(1)
        items = kv_heads * tiles * parts
        while item < base + items:
            i = item - base
            h, i = i % kv_heads, i // kv_heads
            part, tile = p0 + i % parts, tiles - 1 - i // parts  # longest context first
            attention_item(wide, narrow, kv_bytes, a, run_at, run, h, tile * WIDE, part, split, tmp)
            item = grab(ctl, nth, 1)
        base += items


wide_f16, narrow_f16 = make_attend(WIDE, KV_TYPES["f16"]), make_attend(NARROW, KV_TYPES["f16"])
wide_f32, narrow_f32 = make_attend(WIDE, KV_TYPES["f32"]), make_attend(NARROW, KV_TYPES["f32"])


@Op
def attention_f16(args, job, ith, nth, ctl):
    """(descriptor)"""
    attention_op(wide_f16, narrow_f16, 2, args, job, ith, nth, ctl)


@Op
def attention_f32(args, job, ith, nth, ctl):
    """(descriptor)"""
    attention_op(wide_f32, narrow_f32, 4, args, job, ith, nth, ctl)


ATTENTION = {"f16": attention_f16, "f32": attention_f32}


@Op
def attention_combine(args, job, ith, nth, ctl):
    """(descriptor): the second half of split runs, one item per (run, query head)."""
    a = arg(args, 0)
    runs, run_table = ld_i64(job + JOB_VARS + 8 * RUNS), ld_i64(job + JOB_VARS + 8 * RUN_TABLE)
    total_state = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    total = total_state + VB
    dv, heads = arg(a, A_DV), arg(a, A_HEADS)
    group = heads // arg(a, A_KV_HEADS)
    item = grab(ctl, nth, 1)
    base = nb.int64(0)
    for run in range(runs):
        run_at = run_table + run * 8 * RUN_WORDS
        length, start = ld_i64(run_at + 8 * RUN_LENGTH), ld_i64(run_at + 8 * RUN_START)
        p0, p1 = first_part(a, start), (start + length - 1) // BLOCK + 1
        if not is_split(length, p1 - p0):
            continue
        while item < base + heads:
            head = item - base
            r = head % group
            clear_total(total, total_state, dv)
            for p in range(p0, p1):
                partial = partial_at(a, run, head // group, p)
                combine(total, total_state, partial + 8 * _tile_rows(group) + 4 * dv * r, partial + 8 * r, dv)
            out = arg(a, A_OUT) + ld_i64(run_at + 8 * RUN_ROW) * arg(a, A_LDO) + head * 4 * dv
            normalise(total, total_state, out, dv)
            item = grab(ctl, nth, 1)
        base += heads
