"""The lightning indexer (DeepSeek-V3.2): which rows a query attends to.

    score[r] = sum over heads of w[head] * max(0, q[head] . k[r])

The `top_k` rows of the highest scores are a query's list, ties going to the lowest row, ascending. A query
that sees no more rows than that has no list (`latent_rows.is_selected`), and its scores are not computed.

Keys are rows of a source; lanes are index heads, as in `latent`, whose products these are. The sum over heads
is one fixed tree, so a score depends on its query and its row alone. A run of one query spreads its scores
over the team; else a thread scores and selects the rows of a query block by block.
Bound: f32 fma, d vectors of them per 16 heads and key.
"""

import numba as nb

from runtime.kernels.job import RUN_LENGTH, RUN_ROW, RUN_START, RUN_TABLE, RUN_WORDS, RUNS
from runtime.kernels.latent import KEY_BLOCK, thread_scratch
from runtime.kernels.latent_rows import R_RATIO, R_TOP_K, gather, is_selected, list_of
from runtime.kernels.latent_unit import ROWS_OF_TILE, load_unit, scores_of_one, scores_of_two
from runtime.kernels.select import offer_all
from runtime.kernels.simd import (
    LANES,
    VB,
    fma,
    hsum,
    inline,
    ld_i32,
    ld_i64,
    load_f32,
    splat_f32,
    st_f32,
    st_i32,
    st_i64,
    store,
    vmax,
)
from runtime.kernels.tape import Op, arg, variable
from runtime.team import grab

(
    I_Q,  # f32 rows [heads][d]
    I_LDQ,
    I_W,  # f32 rows [heads], zero up to whole vectors
    I_LDW,
    I_HEADS,
    I_D,
    I_KEYS,  # the source that is scored
    I_TARGET,  # the source whose lists are made: as many positions per row
    I_SCORES,  # f32 [runs][I_LD_SCORES / 4]: of runs of one query
    I_LD_SCORES,
) = range(10)
I_WORDS = 10

PART = 256  # rows that a thread scores at once
_LEAST = -3.4e38  # what a score that is not a number counts as
called = {"nogil": True, "error_model": "numpy"}


def scratch_bytes(heads: int, d: int, top_k: int, n_rows: int) -> int:
    """Bytes of a thread's scratch that selecting among `n_rows` rows takes."""
    scoring = 3 * KEY_BLOCK * VB + KEY_BLOCK * 4 * d + -(-heads // LANES) * VB * d
    return scoring + 4 * PART + 8 * top_k + n_rows // 8 + 64


@nb.njit(**inline)
def load_index_queries(a, row, q):
    """q[unit][d][16]; returns the address after them."""
    d, heads = arg(a, I_D), arg(a, I_HEADS)
    for unit in range((heads + LANES - 1) // LANES):
        src = arg(a, I_Q) + row * arg(a, I_LDQ) + unit * LANES * 4 * d
        load_unit(src, min(nb.int64(LANES), heads - unit * LANES), d, nb.float32(1.0), q)
        q += VB * d
    return q


@nb.njit(**inline)
def add_heads(weights, s, n, total):
    """total[key] += weights * max(0, s[key]), one unit's lanes."""
    w, none = load_f32(weights), splat_f32(nb.float32(0.0))
    for i in range(0, VB * n, VB):
        store(total + i, fma(vmax(load_f32(s + i), none), w, load_f32(total + i)))


@nb.njit(**called)
def score(a, run_at, row, first, end, q, out, tmp):
    """Scores of rows [first, end) for a row of the step whose queries are at q; always numbers."""
    d, units, s = arg(a, I_D), (arg(a, I_HEADS) + LANES - 1) // LANES, arg(a, I_KEYS)
    s0, s1, total, keys = tmp, tmp + KEY_BLOCK * VB, tmp + 2 * KEY_BLOCK * VB, tmp + 3 * KEY_BLOCK * VB
    weights = arg(a, I_W) + row * arg(a, I_LDW)
    for k0 in range(first, end, KEY_BLOCK):
        n = min(nb.int64(KEY_BLOCK), end - k0)
        tiles = (n + ROWS_OF_TILE - 1) // ROWS_OF_TILE * ROWS_OF_TILE
        gather(s, run_at, nb.int64(0), k0, k0 + n, keys)
        for i in range(0, VB * n, VB):
            store(total + i, splat_f32(nb.float32(0.0)))
        for u in range(0, units, 2):
            at = q + u * VB * d
            if u + 1 < units:
                scores_of_two(at, at + VB * d, keys, d, nb.int64(0), tiles, s0, s1)
                add_heads(weights + u * VB, s0, n, total)
                add_heads(weights + (u + 1) * VB, s1, n, total)
            else:
                scores_of_one(at, keys, d, nb.int64(0), tiles, s0)
                add_heads(weights + u * VB, s0, n, total)
        for i in range(n):
            x = hsum(load_f32(total + VB * i))
            st_f32(out + 4 * (k0 - first + i), x if x > nb.float32(_LEAST) else nb.float32(_LEAST))


@nb.njit(**inline)
def write_ascending(ids, k, n_rows, bits, out):
    """i32 [k] at ids, all below `n_rows`, in ascending order to out; `bits` is scratch of a bit per row."""
    words = (n_rows + 63) // 64
    for i in range(words):
        st_i64(bits + 8 * i, nb.int64(0))
    for i in range(k):
        r = nb.int64(ld_i32(ids + 4 * i))
        at = bits + 8 * (r // 64)
        st_i64(at, ld_i64(at) | (nb.int64(1) << (r % 64)))
    n = nb.int64(0)
    for i in range(words):
        word = ld_i64(bits + 8 * i)
        if word != 0:
            for j in range(64):
                if (word >> j) & 1:
                    st_i32(out + 4 * n, nb.int32(64 * i + j))
                    n += 1


@nb.njit(**inline)
def n_rows_of(a, position):
    """Rows among which a query selects."""
    return (position + 1) // arg(arg(a, I_TARGET), R_RATIO)


@Op
def index_scores(args, job, ith, nth, ctl):
    """(descriptor): scores of runs of one query that has a list; an item is (run, `PART` rows)"""
    a = arg(args, 0)
    runs, run_table = variable(job, RUNS), variable(job, RUN_TABLE)
    tmp = thread_scratch(job, ith)
    q = tmp + 3 * KEY_BLOCK * VB + KEY_BLOCK * 4 * arg(a, I_D)
    mine = grab(ctl, nth, 1)
    base = nb.int64(0)
    for run in range(runs):
        run_at = run_table + run * 8 * RUN_WORDS
        row, position = ld_i64(run_at + 8 * RUN_ROW), ld_i64(run_at + 8 * RUN_START)
        if ld_i64(run_at + 8 * RUN_LENGTH) != 1 or not is_selected(arg(a, I_TARGET), position):
            continue
        n_rows = n_rows_of(a, position)
        parts = (n_rows + PART - 1) // PART
        while mine < base + parts:
            first = (mine - base) * PART
            load_index_queries(a, row, q)
            out = arg(a, I_SCORES) + run * arg(a, I_LD_SCORES) + 4 * first
            score(a, run_at, row, first, min(n_rows, first + PART), q, out, tmp)
            mine = grab(ctl, nth, 1)
        base += parts


@nb.njit(**called)
def select_row(a, run_at, row, position, scores, tmp):
    """The list of a row of the step; its scores are at `scores`, or computed where that is 0."""
    target = arg(a, I_TARGET)
    k, n_rows = arg(target, R_TOP_K), n_rows_of(a, position)
    q = tmp + 3 * KEY_BLOCK * VB + KEY_BLOCK * 4 * arg(a, I_D)
    part = load_index_queries(a, row, q)
    values = part + 4 * PART
    ids = values + 4 * k
    count = nb.int64(0)
    for first in range(0, n_rows, PART):
        end = min(n_rows, first + PART)
        at = scores + 4 * first
        if scores == 0:
            score(a, run_at, row, first, end, q, part, tmp)
            at = part
        count = offer_all(at, first, end - first, k, count, ids, values)
    bits = (ids + 4 * k + 63) // 64 * 64
    write_ascending(ids, k, n_rows, bits, list_of(target, row, position))


@Op
def index_select(args, job, ith, nth, ctl):
    """(descriptor): the lists of all rows that have one, one item per row"""
    a = arg(args, 0)
    runs, run_table = variable(job, RUNS), variable(job, RUN_TABLE)
    tmp = thread_scratch(job, ith)
    mine = grab(ctl, nth, 1)
    base = nb.int64(0)
    for run in range(runs):
        run_at = run_table + run * 8 * RUN_WORDS
        length, start = ld_i64(run_at + 8 * RUN_LENGTH), ld_i64(run_at + 8 * RUN_START)
        scores = arg(a, I_SCORES) + run * arg(a, I_LD_SCORES) if length == 1 else nb.int64(0)
        while mine < base + length:
            j = length - 1 - (mine - base)  # longest context first
            if is_selected(arg(a, I_TARGET), start + j):
                select_row(a, run_at, ld_i64(run_at + 8 * RUN_ROW) + j, start + j, scores, tmp)
            mine = grab(ctl, nth, 1)
        base += length
