"""Flash attention over the paged key/value pool.

Work is cut at absolute positions only, so a query's result depends on nothing but its own row and the keys
it sees:

partition   256 positions = one block. Each starts from an empty softmax state and yields (max, sum, weighted
            values); partitions are combined in ascending order with one fixed formula.
key block   64 positions inside a partition; one online-softmax update each.

Whether the partitions of a query are computed by one thread one after the other (prefill) or by several
threads and combined after a barrier (decode over a long context) is a matter of scheduling: the arithmetic is
the same. Keys outside a row's mask contribute an exact zero, so neither the tile a row shares with others nor
a skipped partition leaves a trace.

Rows of a tile are (query, head in group) pairs of one kv head: row r of a run is query ``r // group``.
Cache types of plain elements are loaded in place. Others are first decoded, 64 positions at a time, to f32 in
scratch that several tiles of rows then share; from there on it is the same code.
Bound: f32 fma in prefill (2 Dk + 2 Dv flops per key and row), memory reads in decode.
"""

import numba as nb

from runtime.kernels.attention_block import (
    EMPTY,
    KEY_BLOCK,
    NARROW,
    first_key,
    last_key,
    make_key_block,
)
from runtime.kernels.attention_layer import (
    A_BASE,
    A_DK,
    A_DV,
    A_GET_KEYS,
    A_GET_VALUES,
    A_GROUP,
    A_HEADS,
    A_K_BYTES,
    A_KV_HEADS,
    A_LDO,
    A_LDX,
    A_MAX_PARTS,
    A_OUT,
    A_PARTIALS,
    A_SCALE,
    A_SINKS,
    A_TILE,
    A_V_BYTES,
    A_X,
)
from runtime.kernels.job import RUN_BLOCKS, RUN_LENGTH, RUN_ROW, RUN_START, RUN_TABLE, RUN_WORDS, RUNS
from runtime.kernels.kvtypes import KV_TYPES
from runtime.kernels.simd import (
    VB,
    fma,
    fma1,
    hmax,
    inline,
    ld_f32,
    ld_i64,
    load_f32,
    splat_f32,
    st_f32,
    store,
)
from runtime.kernels.tape import JOB_SCRATCH, JOB_VARS, SCRATCH, Op, arg, call_op
from runtime.kernels.vecmath import vexp
from runtime.memory.layout import BLOCK, TILE
from runtime.team import grab

WIDE = 8  # rows of a tile: registers hold WIDE x 2 accumulators
DECODED_TILES = 4  # tiles of rows that share one decoding of a key block


@nb.njit(**inline)
def clear(o, state, dv):
    """An empty softmax state (max, sum) with no values."""
    st_f32(state, nb.float32(EMPTY))
    st_f32(state + 4, nb.float32(0.0))
    for d in range(0, 4 * dv, VB):
        store(o + d, splat_f32(nb.float32(0.0)))


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
def finish(a, head, total, total_state, out, dv):
    """out = values / (sum + weight of the head's sink)"""
    top, weight = ld_f32(total_state), ld_f32(total_state + 4)
    keep = splat_f32(nb.float32(1.0))
    if arg(a, A_SINKS) != 0:
        sink = ld_f32(arg(a, A_SINKS) + 4 * head)
        m1 = max(top, sink)
        keep = vexp(splat_f32(top - m1))
        weight = fma1(weight, hmax(keep), hmax(vexp(splat_f32(sink - m1))))
    inverse = keep * splat_f32(nb.float32(1.0) / weight)
    for d in range(0, 4 * dv, VB):
        store(out + d, load_f32(total + d) * inverse)


@nb.njit(**inline)
def gather_rows(a, row0, r0, n, nq, group, head0, q):
    """q[j] = scaled query of row r0 + j; rows from n on are zero."""
    dk, scale = arg(a, A_DK), splat_f32(ld_f32(a + 8 * A_SCALE))
    for j in range(nq):
        src = arg(a, A_X) + (row0 + (r0 + j) // group) * arg(a, A_LDX) + (head0 + (r0 + j) % group) * 4 * dk
        for d in range(0, 4 * dk, VB):
            v = splat_f32(nb.float32(0.0))
            if j < n:
                v = load_f32(src + d) * scale
            store(q + 4 * dk * j + d, v)


def tile_rows(group):
    """Rows of a one-query run, rounded to whole tiles."""
    return (group + WIDE - 1) // WIDE * WIDE


def partial_bytes(max_runs: int, kv_heads: int, group: int, dv: int, max_parts: int) -> int:
    """Bytes of split runs' partial results: per run, kv head, partition and row a state and Dv floats."""
    return max_runs * kv_heads * max_parts * int(tile_rows(group)) * (8 + 4 * dv)


_tile_rows = nb.njit(**inline)(tile_rows)


@nb.njit(**inline)
def is_split(n, parts):
    """A run of one query over several partitions spreads them over the team."""
    return n == 1 and parts > 1


@nb.njit(**inline)
def partial_at(a, run, kv_head, part):
    """Address of the results of one (run, kv head, partition): states [rows], then values [rows][Dv]."""
    rows = _tile_rows(arg(a, A_HEADS) // arg(a, A_KV_HEADS))
    index = (run * arg(a, A_KV_HEADS) + kv_head) * arg(a, A_MAX_PARTS) + part
    return arg(a, A_PARTIALS) + index * rows * (8 + 4 * arg(a, A_DV))


def make_item(size, load, decoded):
    """attention of up to `n_tiles` tiles of rows of one kv head over partitions [p0, p1)."""
    wide, narrow = make_key_block(WIDE, size, load, decoded), make_key_block(NARROW, size, load, decoded)

    @nb.njit(**inline)
    def item(a, run_at, run, h, r0, max_rows, p0, p1, split, tmp):
        dk, dv = arg(a, A_DK), arg(a, A_DV)
        group = arg(a, A_HEADS) // arg(a, A_KV_HEADS)
        row0, length = ld_i64(run_at + 8 * RUN_ROW), ld_i64(run_at + 8 * RUN_LENGTH)
        start = ld_i64(run_at + 8 * RUN_START)
        run_end = start + length
        table = ld_i64(run_at + 8 * (RUN_BLOCKS + arg(a, A_GROUP)))
        n = min(max_rows, length * group - r0)
        n_tiles = (n + WIDE - 1) // WIDE
        is_narrow = n <= NARROW
        nq = nb.int64(NARROW) if is_narrow else n_tiles * WIDE
        head_off = arg(a, A_BASE) + h * (arg(a, A_K_BYTES) + arg(a, A_V_BYTES))
        s = tmp
        state = s + 4 * WIDE * KEY_BLOCK
        total_state = state + 8 * max_rows
        q = total_state + 8 * max_rows
        o = q + 4 * max_rows * dk
        total = o + 4 * max_rows * dv
        plain_k = total + 4 * max_rows * dv
        plain_v = plain_k + 4 * KEY_BLOCK * dk
        gather_rows(a, row0, r0, n, nq, group, h * group, q)
        end = last_key(a, start + (r0 + n - 1) // group, run_end) + 1
        if split:
            state = partial_at(a, run, h, p0) + 8 * r0
            o = partial_at(a, run, h, p0) + 8 * _tile_rows(group) + 4 * dv * r0
        else:
            for j in range(nq):
                clear(total + 4 * dv * j, total_state + 8 * j, dv)
        for p in range(p0, p1):
            block = ld_i64(table + 8 * p) + head_off
            for j in range(nq):
                clear(o + 4 * dv * j, state + 8 * j, dv)
            for k0 in range(p * BLOCK, min((p + 1) * BLOCK, end), KEY_BLOCK):
                n_keys = min(nb.int64(KEY_BLOCK), end - k0)
                keys = block + (k0 - p * BLOCK) // TILE * arg(a, A_TILE)
                values = keys + arg(a, A_K_BYTES)
                k_step = v_step = arg(a, A_TILE)
                if decoded:
                    for t in range((n_keys + TILE - 1) // TILE):
                        call_op(arg(a, A_GET_KEYS), keys + t * k_step, plain_k + t * VB * dk, dk, 0, 0)
                        call_op(arg(a, A_GET_VALUES), values + t * v_step, plain_v + t * VB * dv, dv, 0, 0)
                    keys, values, k_step, v_step = plain_k, plain_v, VB * dk, VB * dv
                if is_narrow:
                    narrow(a, q, keys, k_step, values, v_step, k0, n_keys, start, run_end, r0, h * group,
                           group, o, state, s)  # fmt: skip
                else:
                    for t in range(n_tiles):
                        at = WIDE * t
                        wide(a, q + 4 * dk * at, keys, k_step, values, v_step, k0, n_keys, start, run_end,
                             r0 + at, h * group, group, o + 4 * dv * at, state + 8 * at, s)  # fmt: skip
            if not split:
                for j in range(n):
                    combine(total + 4 * dv * j, total_state + 8 * j, o + 4 * dv * j, state + 8 * j, dv)
        if not split:
            for j in range(n):
                head = h * group + (r0 + j) % group
                dst = arg(a, A_OUT) + (row0 + (r0 + j) // group) * arg(a, A_LDO) + head * 4 * dv
                finish(a, head, total + 4 * dv * j, total_state + 8 * j, dst, dv)

    return item


@nb.njit(**inline)
def run_parts(a, run_at):
    """Partitions [p0, p1) that any query of a run sees."""
    length, start = ld_i64(run_at + 8 * RUN_LENGTH), ld_i64(run_at + 8 * RUN_START)
    end = start + length
    return first_key(a, start) // BLOCK, last_key(a, end - 1, end) // BLOCK + 1


@nb.njit(**inline)
def attention_op(item, max_rows, args, job, ith, nth, ctl):
    """Items are (run, kv head, `max_rows` rows), or (run, kv head, rows, partition) where a run is split."""
    a = arg(args, 0)
    runs, run_table = ld_i64(job + JOB_VARS + 8 * RUNS), ld_i64(job + JOB_VARS + 8 * RUN_TABLE)
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    kv_heads = arg(a, A_KV_HEADS)
    group = arg(a, A_HEADS) // kv_heads
    mine = grab(ctl, nth, 1)
    base = nb.int64(0)
    for run in range(runs):
        run_at = run_table + run * 8 * RUN_WORDS
        length, start = ld_i64(run_at + 8 * RUN_LENGTH), ld_i64(run_at + 8 * RUN_START)
        end = start + length
        chunks = (length * group + max_rows - 1) // max_rows
        p0, p1 = run_parts(a, run_at)
        split = is_split(length, p1 - p0)
        parts = p1 - p0 if split else nb.int64(1)
        while mine < base + kv_heads * chunks * parts:
            i = mine - base
            h, i = i % kv_heads, i // kv_heads
            r0 = (chunks - 1 - i // parts) * max_rows  # longest context first
            last_row = min(length * group, r0 + max_rows) - 1
            q0 = p0 + i % parts if split else first_key(a, start + r0 // group) // BLOCK
            q1 = q0 + 1 if split else last_key(a, start + last_row // group, end) // BLOCK + 1
            item(a, run_at, run, h, r0, max_rows, q0, q1, split, tmp)
            mine = grab(ctl, nth, 1)
        base += kv_heads * chunks * parts


item_f16 = make_item(2, KV_TYPES["f16"].load, False)
item_f32 = make_item(4, KV_TYPES["f32"].load, False)
item_bf16 = make_item(2, KV_TYPES["bf16"].load, False)
item_decoded = make_item(4, KV_TYPES["f32"].load, True)


@Op
def attention_f16(args, job, ith, nth, ctl):
    """(descriptor)"""
    attention_op(item_f16, WIDE, args, job, ith, nth, ctl)


@Op
def attention_f32(args, job, ith, nth, ctl):
    """(descriptor)"""
    attention_op(item_f32, WIDE, args, job, ith, nth, ctl)


@Op
def attention_bf16(args, job, ith, nth, ctl):
    """(descriptor)"""
    attention_op(item_bf16, WIDE, args, job, ith, nth, ctl)


@Op
def attention_decoded(args, job, ith, nth, ctl):
    """(descriptor): any pair of cache types"""
    attention_op(item_decoded, DECODED_TILES * WIDE, args, job, ith, nth, ctl)


_DIRECT = {"f16": attention_f16, "f32": attention_f32, "bf16": attention_bf16}


def attention(key_type: str, value_type: str) -> Op:
    """The op for caches of these types."""
    return _DIRECT.get(key_type, attention_decoded) if key_type == value_type else attention_decoded


@Op
def attention_combine(args, job, ith, nth, ctl):
    """(descriptor): the second half of split runs, one item per (run, query head)."""
    a = arg(args, 0)
    runs, run_table = ld_i64(job + JOB_VARS + 8 * RUNS), ld_i64(job + JOB_VARS + 8 * RUN_TABLE)
    total_state = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    total = total_state + VB
    dv, heads = arg(a, A_DV), arg(a, A_HEADS)
    group = heads // arg(a, A_KV_HEADS)
    mine = grab(ctl, nth, 1)
    base = nb.int64(0)
    for run in range(runs):
        run_at = run_table + run * 8 * RUN_WORDS
        p0, p1 = run_parts(a, run_at)
        if not is_split(ld_i64(run_at + 8 * RUN_LENGTH), p1 - p0):
            continue
        while mine < base + heads:
            head = mine - base
            r = head % group
            clear(total, total_state, dv)
            for p in range(p0, p1):
                partial = partial_at(a, run, head // group, p)
                combine(total, total_state, partial + 8 * _tile_rows(group) + 4 * dv * r, partial + 8 * r, dv)
            out = arg(a, A_OUT) + ld_i64(run_at + 8 * RUN_ROW) * arg(a, A_LDO) + head * 4 * dv
            finish(a, head, total, total_state, out, dv)
            mine = grab(ctl, nth, 1)
        base += heads
