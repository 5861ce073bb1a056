"""Selective state spaces: the recurrences of Mamba and Mamba 2, and the norm between scan and output.

    h = exp(dt A) h + dt x B,   y = C . h + D x,   dt = softplus(step)

for every channel: h and B, C have `n_state` values. In Mamba each channel has its own dt, and A by state; in
Mamba 2 a head of channels shares one dt and one number A, and B and C are shared by groups of heads.

Lanes are channels, states are summed in order, tokens follow each other: results depend neither on chunks nor
on threads. A state is f32 [channels / 16][n_state][16]; 16 states of 16 channels stay in registers while a
block of tokens passes, so a state is read and written once per block. Inputs of a block lie side by side in
scratch, since rows of a large buffer fall into few sets of the cache.

Bound: three operations per 16 states and token, of whose rate Mamba 2 reaches 80 % in long runs (Zen 4); in
decode the state's bytes. There a state is written past the caches where the plan asks for it, which saves
reading what will be overwritten: 84 us instead of 115 for 1 MiB on one core. Mamba's exponentials cost five
times as much as the rest.
"""

import numba as nb

from runtime.kernels.job import (
    RUN_AFTER,
    RUN_BEFORE,
    RUN_LENGTH,
    RUN_ROW,
    RUN_TABLE,
    RUN_WORDS,
    RUNS,
)
from runtime.kernels.norms import rms_norm
from runtime.kernels.quantise import quantise
from runtime.kernels.simd import (
    LANES,
    VB,
    f32v,
    inline,
    ld_f32,
    ld_i64,
    load_f32,
    make_tile_zero,
    splat_f32,
    st_f32,
    store,
    store_fence,
    tile_dot,
    tile_fma_splat,
    tile_load,
    tile_mul,
    tile_scale,
    tile_store,
    tile_stream,
)
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.kernels.vecmath import tile_exp, vexp, vsilu, vsoftplus
from runtime.team import grab

TOKENS = 32  # of a block that passes through a tile of states
WIDEST = 3072  # states and channels of a head together, so that a block's inputs fit into scratch
_LINE = VB * TOKENS  # bytes of 16 channels of a block

_zero = make_tile_zero(f32v, LANES)


@nb.njit(**inline)
def _copy_columns(src, ld, n, tokens, dst):
    """f32 [tokens][n] -> [n / 16][TOKENS][16]"""
    for t in range(tokens):
        for i in range(0, 4 * n, VB):
            store(dst + i // VB * _LINE + t * VB, load_f32(src + t * ld + i))


@nb.njit(**inline)
def _head_steps(src, ld, tokens, bias, rate, dt, decay):
    """dt = softplus(step + bias) and exp(dt * rate) of each token, f32 [TOKENS] each."""
    for t in range(tokens):
        st_f32(dt + 4 * t, ld_f32(src + t * ld) + bias)
    for i in range(0, 4 * tokens, VB):
        v = vsoftplus(load_f32(dt + i))
        store(dt + i, v)
        store(decay + i, vexp(v * splat_f32(rate)))


@nb.njit(**inline)
def _pass_head(source, target, stream, tokens, decay, x, b, c, y):
    """16 states of 16 channels of a head, while a block of tokens passes."""
    tile = tile_load(_zero(), source, VB)
    for t in range(tokens):
        tile = tile_scale(tile, splat_f32(ld_f32(decay + 4 * t)))
        tile = tile_fma_splat(tile, load_f32(x + t * VB), b + t * VB, 4)
        store(y + t * VB, tile_dot(load_f32(y + t * VB), tile, c + t * VB, 4))
    if stream:
        tile_stream(tile, target, VB)
    else:
        tile_store(tile, target, VB)


@nb.njit(**inline)
def _scan_head(a, run, h, scratch):
    """All tokens of a run through one head."""
    ldx, heads, d = arg(a, 1), arg(a, 2), arg(a, 3)
    groups, n, ld_dt, ldo = arg(a, 4), arg(a, 5), arg(a, 7), arg(a, 12)
    bias, rate, skip = ld_f32(arg(a, 8) + 4 * h), ld_f32(arg(a, 9) + 4 * h), ld_f32(arg(a, 10) + 4 * h)
    dt, decay = scratch, scratch + 4 * TOKENS
    x = decay + 4 * TOKENS
    y = x + 4 * TOKENS * d
    b = y + 4 * TOKENS * d
    c = b + 4 * TOKENS * n
    state = arg(a, 13) + 4 * h * d * n
    source, target = ld_i64(run + 8 * RUN_BEFORE) + state, ld_i64(run + 8 * RUN_AFTER) + state
    row, length = ld_i64(run + 8 * RUN_ROW), ld_i64(run + 8 * RUN_LENGTH)
    stream = arg(a, 14) != 0 and length <= TOKENS and target % VB == 0
    for first in range(row, row + length, TOKENS):
        tokens = min(nb.int64(TOKENS), row + length - first)
        at = arg(a, 0) + first * ldx
        out = arg(a, 11) + first * ldo + 4 * h * d
        _head_steps(arg(a, 6) + first * ld_dt + 4 * h, ld_dt, tokens, bias, rate, dt, decay)
        group = at + 4 * (heads * d + h * groups // heads * n)
        _copy_columns(group, ldx, n, tokens, b)
        _copy_columns(group + 4 * groups * n, ldx, n, tokens, c)
        for t in range(tokens):
            size = splat_f32(ld_f32(dt + 4 * t))
            for i in range(0, 4 * d, VB):
                v = load_f32(at + t * ldx + 4 * h * d + i)
                store(x + i // VB * _LINE + t * VB, v * size)
                store(y + i // VB * _LINE + t * VB, v * splat_f32(skip))
        for p in range(d // LANES):
            for s in range(n // LANES):
                tile = (p * n + s * LANES) * VB
                _pass_head(source + tile, target + tile, stream, tokens, decay, x + p * _LINE, b + s * _LINE,
                           c + s * _LINE, y + p * _LINE)  # fmt: skip
        for t in range(tokens):
            for i in range(0, 4 * d, VB):
                store(out + t * ldo + i, load_f32(y + i // VB * _LINE + t * VB))
        source = target


@Op
def scan_heads(a, job, ith, nth, ctl):
    """(x, ldx, heads, channels of a head, groups, n_state, steps, ldt, bias of steps, A [heads], D [heads],
    out, ldo, state, stream): Mamba 2

    A row of x holds the heads' channels, then B and C of all groups; `steps` are columns of one value for
    each head; `state` is the state's offset. Out are columns of another buffer than x. With `stream` short
    runs write the state past the caches.
    """
    heads, run_table = arg(a, 2), variable(job, RUN_TABLE)
    n_items = variable(job, RUNS) * heads
    scratch = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        item = grab(ctl, nth, 1)
        if item >= n_items:
            break
        _scan_head(a, run_table + item // heads * 8 * RUN_WORDS, item % heads, scratch)
    store_fence()


@nb.njit(**inline)
def _scan_channels(a, run, part, scratch):
    """All tokens of a run through 16 channels."""
    ldx, n, ld_dt, ldb, ldz = arg(a, 1), arg(a, 3), arg(a, 5), arg(a, 7), arg(a, 11)
    column, rates = part * VB, arg(a, 8) + part * n * VB
    skip = load_f32(arg(a, 9) + column)
    dt, x, y = scratch, scratch + _LINE, scratch + 2 * _LINE
    state = arg(a, 12) + part * n * VB
    source, target = ld_i64(run + 8 * RUN_BEFORE) + state, ld_i64(run + 8 * RUN_AFTER) + state
    row, length = ld_i64(run + 8 * RUN_ROW), ld_i64(run + 8 * RUN_LENGTH)
    for first in range(row, row + length, TOKENS):
        tokens = min(nb.int64(TOKENS), row + length - first)
        at = arg(a, 0) + first * ldx + column
        for t in range(tokens):
            size = vsoftplus(load_f32(arg(a, 4) + (first + t) * ld_dt + column))
            v = load_f32(at + t * ldx)
            store(dt + t * VB, size)
            store(x + t * VB, v * size)
            store(y + t * VB, v * skip)
        for s in range(0, n * VB, LANES * VB):
            tile, rate = tile_load(_zero(), source + s, VB), tile_load(_zero(), rates + s, VB)
            for t in range(tokens):
                b = arg(a, 6) + (first + t) * ldb + s // LANES
                tile = tile_fma_splat(tile_mul(tile, tile_exp(tile_scale(rate, load_f32(dt + t * VB)))),
                                      load_f32(x + t * VB), b, 4)  # fmt: skip
                store(y + t * VB, tile_dot(load_f32(y + t * VB), tile, b + 4 * n, 4))
            tile_store(tile, target + s, VB)
        for t in range(tokens):
            gate = vsilu(load_f32(arg(a, 10) + (first + t) * ldz + column))
            store(at + t * ldx, load_f32(y + t * VB) * gate)
        source = target


@Op
def scan_channels(a, job, ith, nth, ctl):
    """(x, ldx, channels, n_state, steps, ldt, B and C, ldb, A [channels / 16][n_state][16], D [channels], z,
    ldz, state): Mamba, in place, with what follows: x = y * silu(z)

    A row at `B and C` holds B, then C; `state` is the state's offset.
    """
    parts, run_table = arg(a, 2) // LANES, variable(job, RUN_TABLE)
    n_items = variable(job, RUNS) * parts
    scratch = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    chunk = max(nb.int64(1), min(nb.int64(4), n_items // (8 * nth)))
    while True:
        item = grab(ctl, nth, chunk)
        if item >= n_items:
            break
        for each in range(item, min(n_items, item + chunk)):
            _scan_channels(a, run_table + each // parts * 8 * RUN_WORDS, each % parts, scratch)


@Op
def gate_norm_quant(a, job, ith, nth, ctl):
    """(z, ldz, up, n, groups, weight, eps f32, dst, activation kind, rows): dst = quantise(norm(silu(z) * y))

    y lies `up` bytes after z; the RMS norm is of each group of a row by itself.
    """
    z, ldz, up, n, groups = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    w, eps, dst, kind, rows = arg(a, 5), ld_f32(a + 8 * 6), arg(a, 7), arg(a, 8), variable(job, arg(a, 9))
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    width = n // groups
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        gate = z + j * ldz
        for i in range(0, 4 * n, VB):
            store(tmp + i, vsilu(load_f32(gate + i)) * load_f32(gate + up + i))
        for g in range(0, 4 * n, 4 * width):
            rms_norm(tmp + g, w + g, width, eps, tmp + g)
        quantise(tmp - j * 4 * n, 4 * n, j, j + 1, rows, n, dst, kind)
