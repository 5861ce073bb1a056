"""Gated delta rule: a matrix of state per head that each token corrects towards ``S^T k = v``.

    S <- diag(e) S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q

`e` is one decay per head (gated delta net, arXiv:2412.06464) or one per key channel (Kimi delta attention,
arXiv:2510.26692). Tokens go one by one, so bits do not depend on where a prompt is cut.

A head's state is ``[Dv / 16][Dk][16]``: lanes are value columns and never meet, so slices of columns are
work of their own, and one stays in the first-level cache for a whole run. There is one pass over it per
token: while a row of the state is decayed, corrected and multiplied by q, its product with the next token's
key is taken along. Four multiply-adds per element and token bound prefill, traffic of the state decode.
"""

import numba as nb

from runtime.kernels.job import ROWS, RUN_AFTER, RUN_BEFORE, RUN_LENGTH, RUN_ROW, RUN_TABLE, RUN_WORDS, RUNS
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
    splat_f32,
    st_f32,
    store,
    vdiv,
    vsqrt,
)
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.kernels.tiles import make_tile_zero, tile_fma, tile_load, tile_scale, tile_store
from runtime.kernels.vecmath import vexp, vsigmoid, vsoftplus
from runtime.team import grab

WIDE, NARROW = 2, 1  # slices of columns that share what is loaded of k and q


@nb.njit(**inline)
def splat_at(address):
    return splat_f32(ld_f32(address))


def make_scan(n, per_channel):
    """The tokens of a run through `n` slices of a head's state, which are `step` bytes apart.

    Addresses are those of the first token; rows of q, k, v are `ldx` bytes apart, of beta and decays `ldg`,
    of o `ldo`. With decays per channel `keys` are ``e k``, rows `ldg` apart, else k.
    """
    zero = make_tile_zero(f32v, n)

    @nb.njit(**inline)
    def correction(v, u, beta, e):
        """beta (v - S^T k), S decayed: u is that product, but for a decay that all channels share."""
        decay = nb.float32(1.0) if per_channel else ld_f32(e)
        return tile_scale(tile_fma(tile_load(zero(), v, VB), u, splat_f32(-decay)), splat_at(beta))

    @nb.njit(**inline)
    def scan(before, after, step, dk, n_rows, q, k, v, ldx, beta, e, keys, ldg, o, ldo):
        src, ld_keys = before, ldg if per_channel else ldx
        u = zero()
        for i in range(dk):
            u = tile_fma(u, tile_load(zero(), src + VB * i, step), splat_at(keys + 4 * i))
        for t in range(n_rows):
            delta = correction(v, u, beta, e)
            if t + 1 < n_rows:
                keys += ld_keys
            decay = splat_at(e)
            u, out = zero(), zero()
            for i in range(dk):
                if per_channel:
                    decay = splat_at(e + 4 * i)
                s = tile_scale(tile_load(zero(), src + VB * i, step), decay)
                s = tile_fma(s, delta, splat_at(k + 4 * i))
                tile_store(s, after + VB * i, step)
                out = tile_fma(out, s, splat_at(q + 4 * i))
                u = tile_fma(u, s, splat_at(keys + 4 * i))
            tile_store(out, o, VB)
            src = after
            q, k, v, beta, e, o = q + ldx, k + ldx, v + ldx, beta + ldg, e + ldg, o + ldo

    return scan


def make_rule(per_channel):
    """Items are (run, value head, slices)."""
    wide, narrow = make_scan(WIDE, per_channel), make_scan(NARROW, per_channel)

    @nb.njit(**inline)
    def rule(a, job, nth, ctl):
        x, ldx, k_heads, sharing = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3)
        v_heads, d, gates, ldg = arg(a, 4), arg(a, 5), arg(a, 6), arg(a, 7)
        e_at, out, ldo, offset = arg(a, 8), arg(a, 9), arg(a, 10), arg(a, 11)
        n_runs, run_table = variable(job, RUNS), variable(job, RUN_TABLE)
        step = VB * d  # bytes of a slice
        n = nb.int64(WIDE) if d % (WIDE * LANES) == 0 else nb.int64(NARROW)
        parts = d // (n * LANES)
        while True:
            item = grab(ctl, nth, 1)
            if item >= n_runs * v_heads * parts:
                break
            run = run_table + item // (v_heads * parts) * 8 * RUN_WORDS
            h, column = item // parts % v_heads, item % parts * n * VB
            row, length = ld_i64(run + 8 * RUN_ROW), ld_i64(run + 8 * RUN_LENGTH)
            state = offset + h * d * 4 * d + item % parts * n * step
            before, after = ld_i64(run + 8 * RUN_BEFORE) + state, ld_i64(run + 8 * RUN_AFTER) + state
            q = x + row * ldx + 4 * d * (h // sharing % k_heads)
            k = q + 4 * d * k_heads
            v = x + row * ldx + 4 * d * (2 * k_heads + h) + column
            beta = gates + row * ldg + 4 * h
            o = out + row * ldo + 4 * d * h + column
            if per_channel:
                e = gates + row * ldg + e_at + 4 * d * h
                keys = e + 4 * d * v_heads
            else:
                e, keys = beta + e_at, k
            if n == WIDE:
                wide(before, after, step, d, length, q, k, v, ldx, beta, e, keys, ldg, o, ldo)
            else:
                narrow(before, after, step, d, length, q, k, v, ldx, beta, e, keys, ldg, o, ldo)

    return rule


rule_of_heads, rule_of_channels = make_rule(False), make_rule(True)


@Op
def delta_rule(a, job, ith, nth, ctl):
    """(x, ldx, k heads, sharing, v heads, D, gates, ldg, decay, out, ldo, state): o of each v head

    Rows of x are q [k heads][D], k [k heads][D], v [v heads][D]; head h of v goes with head
    ``h // sharing % k heads`` of q and k. Rows of gates are beta [v heads], `decay` bytes on e [v heads].
    """
    rule_of_heads(a, job, nth, ctl)


@Op
def delta_rule_channels(a, job, ith, nth, ctl):
    """As `delta_rule`, but `decay` bytes after beta are e [v heads][D], then e k [v heads][D]"""
    rule_of_channels(a, job, nth, ctl)


@Op
def l2_heads(a, job, ith, nth, ctl):
    """(x, ldx, heads, D, eps f32, scaled, scale f32): x / sqrt(sum(x^2) + eps) of each head, in place

    The first `scaled` heads are multiplied by `scale` too.
    """
    x, ldx, heads, d, eps = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), ld_f32(a + 8 * 4)
    scaled, scale, rows = arg(a, 5), ld_f32(a + 8 * 6), variable(job, ROWS)
    while True:
        first = grab(ctl, nth, 4)
        if first >= rows * heads:
            break
        for item in range(first, min(rows * heads, first + 4)):
            at = x + item // heads * ldx + item % heads * 4 * d
            squares = splat_f32(nb.float32(0.0))
            for i in range(0, 4 * d, VB):
                squares = fma(load_f32(at + i), load_f32(at + i), squares)
            factor = vdiv(splat_f32(nb.float32(1.0)), vsqrt(splat_f32(hsum(squares) + eps)))
            if item % heads < scaled:
                factor = factor * splat_f32(scale)
            for i in range(0, 4 * d, VB):
                store(at + i, load_f32(at + i) * factor)


@nb.njit(**inline)
def gather_groups(x, group, stride, n, out):
    """out = n floats that lie in groups of `group`, `stride` bytes apart."""
    for i in range(n):
        st_f32(out + 4 * i, ld_f32(x + i // group * stride + 4 * (i % group)))


@Op
def delta_gates(a, job, ith, nth, ctl):
    """(beta, alpha, ld, heads, group, stride, a, dt, gates, ldg, decay)

    beta = sigmoid(beta) and, `decay` bytes on, e = exp(a * softplus(alpha + dt)), per head. What a row has
    of beta and alpha lies in groups of heads, `stride` bytes apart; vectors `a` and `dt` are whole panels.
    """
    beta, alpha, ld, heads, group, stride = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5)
    rate, dt, gates, ldg, decay = arg(a, 6), arg(a, 7), arg(a, 8), arg(a, 9), arg(a, 10)
    rows, tmp = variable(job, ROWS), ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            out = gates + r * ldg
            gather_groups(beta + r * ld, group, stride, heads, tmp)
            for i in range(0, 4 * heads, VB):
                store(out + i, vsigmoid(load_f32(tmp + i)))
            gather_groups(alpha + r * ld, group, stride, heads, tmp)
            for i in range(0, 4 * heads, VB):
                softened = vsoftplus(load_f32(tmp + i) + load_f32(dt + i))
                store(out + decay + i, vexp(load_f32(rate + i) * softened))


@Op
def channel_gates(a, job, ith, nth, ctl):
    """(beta, ldb, f, ldf, k, ldk, heads, D, a, dt, gates, ldg, decay): gates of `delta_rule_channels`

    beta = sigmoid(beta) per head, e = exp(a * softplus(f + dt)) per channel with one `a` per head, then e k.
    """
    beta, ldb, f, ldf, k, ldk = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5)
    heads, d, rate, dt, gates, ldg = arg(a, 6), arg(a, 7), arg(a, 8), arg(a, 9), arg(a, 10), arg(a, 11)
    decay, rows = arg(a, 12), variable(job, ROWS)
    while True:
        r = grab(ctl, nth, 1)
        if r >= rows:
            break
        out = gates + r * ldg
        for i in range(0, 4 * heads, VB):
            store(out + i, vsigmoid(load_f32(beta + r * ldb + i)))
        for h in range(heads):
            slope = splat_at(rate + 4 * h)
            for i in range(4 * d * h, 4 * d * (h + 1), VB):
                e = vexp(slope * vsoftplus(load_f32(f + r * ldf + i) + load_f32(dt + i)))
                store(out + decay + i, e)
                store(out + decay + 4 * d * heads + i, e * load_f32(k + r * ldk + i))
