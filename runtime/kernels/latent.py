"""Attention whose heads share their keys, and whose values are the keys' first dims: MLA, DeepSeek V4.

Keys are rows of up to two sources (`latent_rows`), under one softmax per head. A lane is a query head: a unit
is up to 16 heads of one query, and scores of a key are one vector of it, ``S[key] = sum over d of K[key][d] *
Q[d]``, with d ascending. What a unit sees is then a range of keys and no lane needs a mask.

Work is cut at absolute places only, as in `attention`:

partition   256 rows of a source, or 256 entries of a query's list. Each starts from an empty softmax state
            and yields a record: (max, sum, weighted values). Records are combined in order, those of the
            first source first.
key block   64 rows inside a partition, decoded to f32 into scratch that the units of a tile share; one
            online-softmax update each.

So neither the rows of a tile, nor threads, nor whether a list that names all rows was spelled out change
a bit.
Bound: f32 fma, ``d + dv`` vectors of them per key and unit; 16 accumulators and 10 loads for 16 of them.
"""

import numba as nb

from runtime.kernels.job import RUN_LENGTH, RUN_ROW, RUN_START, RUN_TABLE, RUN_WORDS, RUNS
from runtime.kernels.latent_rows import end_row, first_row, gather, is_selected, list_of
from runtime.kernels.latent_unit import (
    ROWS_OF_TILE,
    STATE,
    add_values,
    called,
    clear,
    combine,
    load_unit,
    scores_of_one,
    scores_of_two,
    softmax,
)
from runtime.kernels.simd import (
    LANES,
    VB,
    fma,
    inline,
    ld_f32,
    ld_i64,
    load_f32,
    splat_f32,
    store,
    vdiv,
    vmax,
)
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.kernels.vecmath import vexp
from runtime.team import grab

(
    L_Q,  # f32 rows [heads][d]
    L_LDQ,
    L_OUT,  # f32 rows [heads][dv]
    L_LDO,
    L_HEADS,
    L_D,
    L_DV,
    L_SCALE,  # f32 factor of q . k
    L_SINKS,  # f32 [heads] of logits that take weight and give no value, 0 for none
    L_FIRST,  # sources
    L_SECOND,  # or 0
    L_RECORDS,  # of split runs, see `records_bytes`
    L_MAX_PARTS,  # partitions that a query can have
    L_UNITS,  # units of a tile at most, see `units_of_tile`
) = range(14)
L_WORDS = 14

PARTITION = 256
KEY_BLOCK = 64
MAX_UNITS = 8


def unit_bytes(d: int, dv: int) -> int:
    """Scratch of one unit: its queries, a record and the running total."""
    return VB * d + 2 * (STATE + VB * dv)


def units_of_tile(d: int, dv: int) -> int:
    """How many units a tile can have; 0 if rows are too long for the ops' scratch."""
    left = SCRATCH - KEY_BLOCK * 4 * d - 2 * KEY_BLOCK * VB - 2 * VB
    return min(MAX_UNITS, max(0, left) // unit_bytes(d, dv))


def records_bytes(max_runs: int, heads: int, dv: int, max_parts: int) -> int:
    """Bytes of split runs' records: [run][unit][partition]."""
    return max_runs * -(-heads // LANES) * max_parts * (STATE + VB * dv)


@nb.njit(**inline)
def load_queries(a, row, unit, q):
    """The scaled queries of a unit, turned."""
    d, heads = arg(a, L_D), min(nb.int64(LANES), arg(a, L_HEADS) - unit * LANES)
    src = arg(a, L_Q) + row * arg(a, L_LDQ) + unit * LANES * 4 * d
    load_unit(src, heads, d, ld_f32(a + 8 * L_SCALE), q)


@nb.njit(**called)
def finish(a, row, unit, total, factors):
    """out = values / (sum + weight of the head's sink)"""
    dv, heads = arg(a, L_DV), min(nb.int64(LANES), arg(a, L_HEADS) - unit * LANES)
    top, weight = load_f32(total), load_f32(total + VB)
    keep = splat_f32(nb.float32(1.0))
    if arg(a, L_SINKS) != 0:
        sink = load_f32(arg(a, L_SINKS) + unit * VB)
        m1 = vmax(top, sink)
        keep = vexp(top - m1)
        weight = fma(weight, keep, vexp(sink - m1))
    store(factors, vdiv(keep, weight))
    out = arg(a, L_OUT) + row * arg(a, L_LDO) + unit * LANES * 4 * dv
    for h in range(heads):
        factor, at = splat_f32(ld_f32(factors + 4 * h)), 4 * dv * h
        for i in range(at, at + 4 * dv, VB):
            store(out + i, load_f32(total + STATE + i) * factor)


@nb.njit(**inline)
def clamp(x, low, high):
    return min(max(x, low), high)


@nb.njit(**called)
def attend(a, s, run_at, rows, part, p0, unit0, per_row, n, q, record, stride, tmp):
    """Records of a tile's `n` units over one partition of source s.

    Unit u is the ``unit0 + u % per_row``-th of the query at position ``p0 + u // per_row``; its record lies
    at ``record + u * stride``. `rows` is the list of the only query, or 0.
    """
    d, dv, heads = arg(a, L_D), arg(a, L_DV), arg(a, L_HEADS)
    s0, s1, keys = tmp, tmp + KEY_BLOCK * VB, tmp + 2 * KEY_BLOCK * VB
    factors = keys + KEY_BLOCK * 4 * d
    for u in range(n):
        clear(record + u * stride, dv)
    begin = max(part * PARTITION, first_row(s, p0))
    end = min((part + 1) * PARTITION, end_row(s, p0 + (n - 1) // per_row))
    for k0 in range(part * PARTITION, end, KEY_BLOCK):
        first, last = max(begin - k0, nb.int64(0)), min(nb.int64(KEY_BLOCK), end - k0)
        if first >= last:
            continue
        gather(s, run_at, rows, k0 + first, k0 + last, keys + 4 * d * first)
        t0 = first // ROWS_OF_TILE * ROWS_OF_TILE
        t1 = (last + ROWS_OF_TILE - 1) // ROWS_OF_TILE * ROWS_OF_TILE
        for u in range(0, n, 2):
            if u + 1 < n:
                scores_of_two(q + u * VB * d, q + (u + 1) * VB * d, keys, d, t0, t1, s0, s1)
            else:
                scores_of_one(q + u * VB * d, keys, d, t0, t1, s0)
            for v in range(u, min(n, u + 2)):
                scores, position = s0 if v == u else s1, p0 + v // per_row
                low = clamp(first_row(s, position) - k0, first, last)
                high = clamp(end_row(s, position) - k0, first, last)
                if low < high:
                    at = record + v * stride
                    softmax(scores, low, high, at, factors, dv)
                    used = min(nb.int64(LANES), heads - (unit0 + v % per_row) * LANES)
                    add_values(scores, keys, d, low, high, used, at + STATE, dv)


@nb.njit(**inline)
def first_part(s, position):
    return first_row(s, position) // PARTITION


@nb.njit(**inline)
def end_part(s, position):
    """After the last partition that a query at `position` sees; at least the first one."""
    return max(first_part(s, position), (end_row(s, position) + PARTITION - 1) // PARTITION)


@nb.njit(**inline)
def parts_of(a, position):
    """How many partitions a query has, over its sources."""
    s, t = arg(a, L_FIRST), arg(a, L_SECOND)
    n = end_part(s, position) - first_part(s, position)
    return n + end_part(t, position) - first_part(t, position) if t != 0 else n


@nb.njit(**inline)
def record_at(a, run, unit, part):
    """Address of a split run's record."""
    index = (run * ((arg(a, L_HEADS) + LANES - 1) // LANES) + unit) * arg(a, L_MAX_PARTS) + part
    return arg(a, L_RECORDS) + index * (STATE + VB * arg(a, L_DV))


@nb.njit(**inline)
def sees(s, position, part):
    return first_row(s, position) < (part + 1) * PARTITION and end_row(s, position) > part * PARTITION


@nb.njit(**called)
def attend_split(a, run, run_at, unit0, n, part, tmp):
    """The `part`-th partition of a run's only query, into its records."""
    d, row, position = arg(a, L_D), ld_i64(run_at + 8 * RUN_ROW), ld_i64(run_at + 8 * RUN_START)
    s = arg(a, L_FIRST)
    n_first = end_part(s, position) - first_part(s, position)
    i = part
    if part >= n_first:
        s, i = arg(a, L_SECOND), part - n_first
    q = tmp + 2 * KEY_BLOCK * VB + KEY_BLOCK * 4 * d + 2 * VB
    for u in range(n):
        load_queries(a, row, unit0 + u, q + u * VB * d)
    record = record_at(a, run, unit0, part)
    stride = record_at(a, run, unit0 + 1, part) - record
    attend(a, s, run_at, list_of(s, row, position), first_part(s, position) + i, position, unit0, n, n, q,
           record, stride, tmp)  # fmt: skip


@nb.njit(**called)
def attend_tile(a, run_at, j0, n_rows, unit0, per_row, tmp):
    """All partitions of rows [j0, j0 + n_rows) of a run, `per_row` units of each."""
    d, dv = arg(a, L_D), arg(a, L_DV)
    row, p0, n = ld_i64(run_at + 8 * RUN_ROW) + j0, ld_i64(run_at + 8 * RUN_START) + j0, n_rows * per_row
    stride = STATE + VB * dv
    factors = tmp + 2 * KEY_BLOCK * VB + KEY_BLOCK * 4 * d
    q = factors + 2 * VB
    record = q + n * VB * d
    total = record + n * stride
    for u in range(n):
        load_queries(a, row + u // per_row, unit0 + u % per_row, q + u * VB * d)
        clear(total + u * stride, dv)
    for source in range(L_FIRST, L_SECOND + 1):
        s = arg(a, source)
        if s == 0:
            continue
        rows = list_of(s, row, p0) if n_rows == 1 else nb.int64(0)
        for part in range(first_part(s, p0), end_part(s, p0 + n_rows - 1)):
            attend(a, s, run_at, rows, part, p0, unit0, per_row, n, q, record, stride, tmp)
            for u in range(n):
                if sees(s, p0 + u // per_row, part):
                    combine(total + u * stride, record + u * stride, factors, dv)
    for u in range(n):
        finish(a, row + u // per_row, unit0 + u % per_row, total + u * stride, factors)


@nb.njit(**inline)
def rows_of_tile(a, last, units):
    """Rows that share a tile in a run that ends with position `last`: one where queries have lists."""
    s, t = arg(a, L_FIRST), arg(a, L_SECOND)
    if is_selected(s, last) or (t != 0 and is_selected(t, last)):
        return nb.int64(1)
    return max(nb.int64(1), arg(a, L_UNITS) // units)


@nb.njit(**inline)
def thread_scratch(job, ith):
    return ld_i64(job + JOB_SCRATCH) + ith * SCRATCH


@Op
def latent_attention(args, job, ith, nth, ctl):
    """(descriptor): items are (run, rows, units), or (run, units, partition) where a run is one query"""
    a = arg(args, 0)
    runs, run_table = variable(job, RUNS), variable(job, RUN_TABLE)
    tmp = thread_scratch(job, ith)
    units = (arg(a, L_HEADS) + LANES - 1) // LANES
    at_once = min(units, arg(a, L_UNITS))
    chunks = (units + at_once - 1) // at_once
    mine = grab(ctl, nth, 1)
    base = nb.int64(0)
    for run in range(runs):
        run_at = run_table + run * 8 * RUN_WORDS
        length, start = ld_i64(run_at + 8 * RUN_LENGTH), ld_i64(run_at + 8 * RUN_START)
        parts = parts_of(a, start) if length == 1 else nb.int64(1)
        step = rows_of_tile(a, start + length - 1, units)
        tiles = (length + step - 1) // step
        while mine < base + chunks * tiles * parts:
            i = mine - base
            unit0, i = i % chunks * at_once, i // chunks
            n = min(units - unit0, at_once)
            if parts > 1:
                attend_split(a, run, run_at, unit0, n, i, tmp)
            else:
                j0 = (tiles - 1 - i) * step  # longest context first
                attend_tile(a, run_at, j0, min(step, length - j0), unit0, n, tmp)
            mine = grab(ctl, nth, 1)
        base += chunks * tiles * parts


@Op
def latent_combine(args, job, ith, nth, ctl):
    """(descriptor): the second half of split runs, one item per (run, unit)"""
    a = arg(args, 0)
    runs, run_table = variable(job, RUNS), variable(job, RUN_TABLE)
    factors = thread_scratch(job, ith)
    total, dv = factors + 2 * VB, arg(a, L_DV)
    units = (arg(a, L_HEADS) + LANES - 1) // LANES
    mine = grab(ctl, nth, 1)
    base = nb.int64(0)
    for run in range(runs):
        run_at = run_table + run * 8 * RUN_WORDS
        parts = parts_of(a, ld_i64(run_at + 8 * RUN_START))
        if ld_i64(run_at + 8 * RUN_LENGTH) != 1 or parts == 1:
            continue
        while mine < base + units:
            unit = mine - base
            clear(total, dv)
            for part in range(parts):
                combine(total, record_at(a, run, unit, part), factors, dv)
            finish(a, ld_i64(run_at + 8 * RUN_ROW), unit, total, factors)
            mine = grab(ctl, nth, 1)
        base += units
