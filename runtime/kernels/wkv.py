"""RWKV 7: token shift, and the state of its time mix.

    shift    out = x + (previous x - x) * lerp
    mix      S = S diag(w) + (S a) b^T + v k^T,   out = S r

for every head, S having a row per value and a column per key. What goes in is made of the projections'
results, channel by channel (see `_prepare`):

    w = exp(-0.606531 sigmoid(w' + w0))        a = -kk,  b = kk * rate,  kk = k' * k_k / |k' * k_k|
    k = k' + (rate - 1) * k' * k_a             rate = sigmoid(rate' + a0)
    v = v' + (v of layer 0 - v') * sigmoid(mix + v0)

What comes out is normed by heads, gets ``v * sum(r * k * r_k)`` added, and is multiplied by the gate.

Lanes are values, keys follow each other in order, tokens too: results depend neither on chunks nor on
threads. The state is f32 [heads][D / 16][D][16]. It passes through registers once per token: S a of the next
token is summed up while this token's S is made.

Bound: five operations per 16 elements of S and token; in decode the state's bytes.
"""

import numba as nb
import numpy as np

from runtime.kernels.job import (
    ROW_RUN,
    ROWS,
    RUN_AFTER,
    RUN_BEFORE,
    RUN_LENGTH,
    RUN_ROW,
    RUN_TABLE,
    RUN_WORDS,
    RUNS,
)
from runtime.kernels.norms import layer_norm
from runtime.kernels.quantise import quantise
from runtime.kernels.simd import (
    LANES,
    VB,
    f32v,
    fma,
    hsum,
    inline,
    ld_f32,
    ld_i64,
    load_f32,
    make_tile_zero,
    splat_f32,
    store,
    tile_dot,
    tile_fma_splat,
    tile_load,
    tile_mul_splat,
    tile_store,
    vneg,
)
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.kernels.vecmath import vexp, vsigmoid
from runtime.team import grab

(
    M_R,  # f32 rows [heads][D] of the projections' results, all M_LD bytes apart
    M_W,
    M_K,
    M_V,
    M_RATE,
    M_MIX,  # 0 in layer 0
    M_FIRST,  # v of layer 0, not used there
    M_GATE,
    M_OUT,
    M_LD,
    M_W0,  # f32 [heads][D], as all that follow
    M_A0,
    M_V0,
    M_K_K,
    M_K_A,
    M_R_K,
    M_LN,
    M_LN_BIAS,
    M_HEADS,
    M_D,
    M_EPS,  # f32, of the norm of heads
    M_STATE,  # offset of the state
) = range(22)
M_WORDS = 22

_DECAY = -0.606531  # -exp(-1/2)
_SHORTEST = 1e-12  # what a key's length is at least, to be divided by
_S_W, _S_K, _S_V, _S_A, _S_B, _SLOT = range(6)  # what `_prepare` makes of a token, D floats each

_zero = make_tile_zero(f32v, LANES)


@nb.njit(**inline)
def _previous(x, ldx, job, row, state):
    """(address of the row before this one in its sequence, whether this is the last of its run, the run)"""
    run = variable(job, RUN_TABLE) + ld_i64(variable(job, ROW_RUN) + 8 * row) * 8 * RUN_WORDS
    t = row - ld_i64(run + 8 * RUN_ROW)
    before = ld_i64(run + 8 * RUN_BEFORE) + state if t == 0 else x + (row - 1) * ldx
    return before, t == ld_i64(run + 8 * RUN_LENGTH) - 1, run


@Op
def shift_quant(a, job, ith, nth, ctl):
    """(x, ldx, n, lerp, dst, activation kind, state): dst = quantise(x + (previous x - x) * lerp)

    The state of a sequence is its last row; `state` is its offset.
    """
    x, ldx, n, lerp, dst, kind, state = (
        arg(a, 0),
        arg(a, 1),
        arg(a, 2),
        arg(a, 3),
        arg(a, 4),
        arg(a, 5),
        arg(a, 6),
    )
    rows = variable(job, ROWS)
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        at = x + j * ldx
        before, last, run = _previous(x, ldx, job, j, state)
        for i in range(0, 4 * n, VB):
            v = load_f32(at + i)
            store(tmp + i, fma(load_f32(before + i) - v, load_f32(lerp + i), v))
        quantise(tmp - j * 4 * n, 4 * n, j, j + 1, rows, n, dst, kind)
        if last:
            after = ld_i64(run + 8 * RUN_AFTER) + state
            for i in range(0, 4 * n, VB):
                store(after + i, load_f32(at + i))


@nb.njit(**inline)
def _prepare(a, at, column, slot):
    """w, k, v, a and b of one head's token; `at` is the offset of both in rows, `column` of the head."""
    n_bytes = 4 * arg(a, M_D)
    one, squares = splat_f32(nb.float32(1.0)), splat_f32(nb.float32(0.0))
    for i in range(0, n_bytes, VB):
        kk = load_f32(arg(a, M_K) + at + i) * load_f32(arg(a, M_K_K) + column + i)
        store(slot + _S_A * n_bytes + i, kk)
        squares = fma(kk, kk, squares)
    length = max(np.sqrt(hsum(squares)), nb.float32(_SHORTEST))
    inverse = splat_f32(nb.float32(1.0) / length)
    for i in range(0, n_bytes, VB):
        w = vsigmoid(load_f32(arg(a, M_W) + at + i) + load_f32(arg(a, M_W0) + column + i))
        rate = vsigmoid(load_f32(arg(a, M_RATE) + at + i) + load_f32(arg(a, M_A0) + column + i))
        k, v = load_f32(arg(a, M_K) + at + i), load_f32(arg(a, M_V) + at + i)
        if arg(a, M_MIX) != 0:
            mix = vsigmoid(load_f32(arg(a, M_MIX) + at + i) + load_f32(arg(a, M_V0) + column + i))
            v = fma(load_f32(arg(a, M_FIRST) + at + i) - v, mix, v)
        kk = load_f32(slot + _S_A * n_bytes + i) * inverse
        store(slot + _S_W * n_bytes + i, vexp(w * splat_f32(nb.float32(_DECAY))))
        store(slot + _S_K * n_bytes + i, fma(k * load_f32(arg(a, M_K_A) + column + i), rate - one, k))
        store(slot + _S_V * n_bytes + i, v)
        store(slot + _S_A * n_bytes + i, vneg(kk))
        store(slot + _S_B * n_bytes + i, kk * rate)


@nb.njit(**inline)
def _times_key(state, d, key):
    """S key, of 16 values"""
    total = splat_f32(nb.float32(0.0))
    for j in range(0, d, LANES):
        total = tile_dot(total, tile_load(_zero(), state + j * VB, VB), key + 4 * j, 4)
    return total


@nb.njit(**inline)
def _advance(source, target, d, slot, v, removed, r, following):
    """One token's S of 16 values; returns S r and S a of the token that follows."""
    w, k, b = slot + 4 * d * _S_W, slot + 4 * d * _S_K, slot + 4 * d * _S_B
    out, next_removed = splat_f32(nb.float32(0.0)), splat_f32(nb.float32(0.0))
    for j in range(0, d, LANES):
        tile = tile_mul_splat(tile_load(_zero(), source + j * VB, VB), w + 4 * j, 4)
        tile = tile_fma_splat(tile, v, k + 4 * j, 4)
        tile = tile_fma_splat(tile, removed, b + 4 * j, 4)
        tile_store(tile, target + j * VB, VB)
        out = tile_dot(out, tile, r + 4 * j, 4)
        next_removed = tile_dot(next_removed, tile, following + 4 * j, 4)
    return out, next_removed


@nb.njit(**inline)
def _finish(a, at, column, slot, y):
    """From S r of one head's token at y to what the output projection gets."""
    d = arg(a, M_D)
    out, k, v = arg(a, M_OUT) + at, slot + 4 * d * _S_K, slot + 4 * d * _S_V
    layer_norm(y, arg(a, M_LN) + column, arg(a, M_LN_BIAS) + column, d, ld_f32(a + 8 * M_EPS), y)
    weight = splat_f32(nb.float32(0.0))
    for i in range(0, 4 * d, VB):
        both = load_f32(k + i) * load_f32(arg(a, M_R) + at + i)
        weight = fma(both, load_f32(arg(a, M_R_K) + column + i), weight)
    bonus = splat_f32(hsum(weight))
    for i in range(0, 4 * d, VB):
        store(out + i, fma(load_f32(v + i), bonus, load_f32(y + i)) * load_f32(arg(a, M_GATE) + at + i))


@nb.njit(**inline)
def _mix_head(a, run, h, scratch):
    """All tokens of a run through one head."""
    d, ld = arg(a, M_D), arg(a, M_LD)
    column, panel = 4 * h * d, d * VB
    slot, other = scratch, scratch + 4 * d * _SLOT
    removed, y = other + 4 * d * _SLOT, other + 4 * d * (_SLOT + 1)
    state = arg(a, M_STATE) + 4 * h * d * d
    source, target = ld_i64(run + 8 * RUN_BEFORE) + state, ld_i64(run + 8 * RUN_AFTER) + state
    row, length = ld_i64(run + 8 * RUN_ROW), ld_i64(run + 8 * RUN_LENGTH)
    _prepare(a, row * ld + column, column, slot)
    for p in range(d // LANES):
        store(removed + p * VB, _times_key(source + p * panel, d, slot + 4 * d * _S_A))
    for t in range(row, row + length):
        at, following = t * ld + column, slot
        if t + 1 < row + length:
            following = other
            _prepare(a, at + ld, column, following)
        for p in range(d // LANES):
            out, next_removed = _advance(
                source + p * panel, target + p * panel, d, slot, load_f32(slot + 4 * d * _S_V + p * VB),
                load_f32(removed + p * VB), arg(a, M_R) + at, following + 4 * d * _S_A,
            )  # fmt: skip
            store(y + p * VB, out)
            store(removed + p * VB, next_removed)
        _finish(a, at, column, slot, y)
        source = target
        slot, other = other, slot


@Op
def mix_heads(args, job, ith, nth, ctl):
    """(descriptor)"""
    a, run_table = arg(args, 0), variable(job, RUN_TABLE)
    heads = arg(a, M_HEADS)
    n_items = variable(job, RUNS) * heads
    scratch = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        item = grab(ctl, nth, 1)
        if item >= n_items:
            break
        _mix_head(a, run_table + item // heads * 8 * RUN_WORDS, item % heads, scratch)
