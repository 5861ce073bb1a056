"""Compressed rows of DeepSeek V4: one for every `ratio` positions, pooled from what those positions said.

Each position appends a row of values and scores to a ring. The position that ends a block of `ratio` pools
it: a softmax per channel over the block's scores weighs the block's values. Where rows are twice as wide as
what they become (ratio 4), a block and the one before it are pooled together: of the block before the first
halves, of the block itself the second ones. Then RMS norm, and rope at the block's first position.

All of a step's rows are appended before any block is pooled, and pooling reads by position alone: so where a
block was cut by steps leaves no trace. The ring holds the blocks that are not pooled yet beside a whole step.

Bound: a block's scores and values, read twice and once; 16 channels at a time, positions ascending.
"""

import numba as nb

from runtime.kernels.job import ROW_POSITION, ROW_RUN, ROWS, RUN_RINGS, RUN_TABLE, RUN_WORDS
from runtime.kernels.latent_rows import put_row
from runtime.kernels.norms import rms_norm
from runtime.kernels.rope import NORM, rotate_norm, tabulate
from runtime.kernels.roundtrip import E2M1, round_head
from runtime.kernels.simd import VB, fma, inline, ld_f32, ld_i64, load_f32, splat_f32, store, vdiv, vmax
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.kernels.vecmath import vexp
from runtime.team import grab

(
    C_X,  # f32 rows: values [width], and `gate` bytes on scores [width]
    C_LDX,
    C_GATE,
    C_WIDTH,  # floats of values: D, or 2 D where blocks overlap
    C_D,
    C_RATIO,
    C_APE,  # f32 [ratio][width], added to scores
    C_NORM,  # f32 [D]
    C_EPS,
    C_RING,  # offset of the ring after the run's rings
    C_STRIDE,  # bytes of a ring's row
    C_CAPACITY,  # rows
    C_OFFSET,  # of this layer in a row: f32 values [width], scores [width]
    C_FREQUENCIES,  # f64 [pairs] of the rope on the last dims of D
    C_PAIRS,
    C_ROWS,  # where compressed rows go: a source of `latent_rows`
    C_ROUNDING,  # a kind of `roundtrip`
) = range(17)
C_WORDS = 17

_LOWEST = -3.4e38


@nb.njit(**inline)
def _run_at(job, j):
    run = ld_i64(variable(job, ROW_RUN) + 8 * j)
    return variable(job, RUN_TABLE) + run * 8 * RUN_WORDS


@nb.njit(**inline)
def _ring_row(c, rings, position):
    return rings + arg(c, C_RING) + position % arg(c, C_CAPACITY) * arg(c, C_STRIDE) + arg(c, C_OFFSET)


@Op
def append(a, job, ith, nth, ctl):
    """(descriptor): values and scores of each position into its run's ring"""
    c, rows = arg(a, 0), variable(job, ROWS)
    size = 4 * arg(c, C_WIDTH)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        position = ld_i64(variable(job, ROW_POSITION) + 8 * j)
        x = arg(c, C_X) + j * arg(c, C_LDX)
        out = _ring_row(c, ld_i64(_run_at(job, j) + 8 * RUN_RINGS), position)
        ape = arg(c, C_APE) + position % arg(c, C_RATIO) * size
        for i in range(0, size, VB):
            store(out + i, load_f32(x + i))
            store(out + size + i, load_f32(x + arg(c, C_GATE) + i) + load_f32(ape + i))


@nb.njit(**inline)
def _half(c, position, first):
    """Where the D values that a position gives to its block begin in its row; the block starts at `first`."""
    return 4 * (arg(c, C_WIDTH) - arg(c, C_D)) if position >= first else nb.int64(0)


@nb.njit(**inline)
def _pool(c, rings, first, out):
    """f32 [D] of the block that starts at position `first`."""
    size, ratio = 4 * arg(c, C_WIDTH), arg(c, C_RATIO)
    overlaps = arg(c, C_WIDTH) != arg(c, C_D)
    start = max(nb.int64(0), first - ratio) if overlaps else first
    for i in range(0, 4 * arg(c, C_D), VB):
        top = splat_f32(nb.float32(_LOWEST))
        for position in range(start, first + ratio):
            at = _ring_row(c, rings, position) + _half(c, position, first) + i
            top = vmax(load_f32(at + size), top)
        total = splat_f32(nb.float32(0.0))
        weights = splat_f32(nb.float32(0.0))
        for position in range(start, first + ratio):
            at = _ring_row(c, rings, position) + _half(c, position, first) + i
            weight = vexp(load_f32(at + size) - top)
            weights = weights + weight
            total = fma(load_f32(at), weight, total)
        store(out + i, vdiv(total, weights))


@nb.njit(**inline)
def rounded(d, n_rot, kind):
    """How many values of a row are rounded: rotated ones stay as they are but for the index."""
    return d if kind == E2M1 else d - n_rot


@Op
def emit(a, job, ith, nth, ctl):
    """(descriptor): the compressed row of each block that a position of the step ends"""
    c, rows = arg(a, 0), variable(job, ROWS)
    d, ratio, pairs = arg(c, C_D), arg(c, C_RATIO), arg(c, C_PAIRS)
    table = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    pooled = table + (16 * pairs + VB - 1) // VB * VB
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        end = ld_i64(variable(job, ROW_POSITION) + 8 * j) + 1
        if end % ratio != 0:
            continue
        run_at = _run_at(job, j)
        first = end - ratio
        _pool(c, ld_i64(run_at + 8 * RUN_RINGS), first, pooled)
        rms_norm(pooled, arg(c, C_NORM), d, ld_f32(c + 8 * C_EPS), pooled)
        tabulate(arg(c, C_FREQUENCIES), pairs, NORM, nb.float32(1.0), first, table)
        rotate_norm(pooled + 4 * (d - 2 * pairs), table, 2 * pairs)
        round_head(pooled, d, rounded(d, 2 * pairs, arg(c, C_ROUNDING)), arg(c, C_ROUNDING))
        put_row(arg(c, C_ROWS), run_at, first // ratio, pooled)
