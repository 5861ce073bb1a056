"""Hyper-connections: a row's residual is four streams side by side; each sub-layer sees one mixture of them.

Of 24 numbers m that a matrix makes of a row's streams, in this order (DeepSeek V4; after arXiv:2409.19606):

    pre[4]     sigmoid + eps              what of each stream the sub-layer sees
    post[4]    2 * sigmoid                what of the result each stream gets
    C[4][4]    doubly stochastic          what of stream i (slow) stream j (fast) keeps

C is a softmax over j that Sinkhorn's iteration brings close to sums of one both ways: columns once, then rows
and columns in turn. It fits one vector, and its sums are exchanges of lanes.

Bound: memory, N reads and N writes of D floats per row and sub-layer.
"""

import numba as nb
from llvmlite import ir
from numba.extending import intrinsic

from runtime.kernels.job import ROW_POSITION, ROW_RUN, ROWS, RUN_TABLE, RUN_WORDS
from runtime.kernels.latent_rows import gather
from runtime.kernels.simd import (
    VB,
    fma,
    inline,
    lane_index,
    ld_f32,
    ld_i64,
    load_f32,
    select,
    splat_f32,
    splat_i32,
    store,
    vdiv,
    vlt,
    vmax,
)
from runtime.kernels.tape import Op, arg, variable
from runtime.kernels.vecmath import vexp, vsigmoid
from runtime.team import grab

STREAMS = 4
GATES = 2 * STREAMS + STREAMS * STREAMS  # numbers of a row
_COMBINE = 4 * 2 * STREAMS  # bytes before C


def _make_exchange(mask):
    @intrinsic
    def exchange(typingctx, v):
        """Lane i gets that of i ^ mask."""

        def codegen(cx, b, sig, args):
            order = ir.Constant(ir.VectorType(ir.IntType(32), v.lanes), [i ^ mask for i in range(v.lanes)])
            return b.shuffle_vector(args[0], args[0], order)

        return v(v), codegen

    return exchange


_by_1, _by_2, _by_4, _by_8 = map(_make_exchange, (1, 2, 4, 8))


@nb.njit(**inline)
def _row_sums(c):
    """In every lane the sum of its four, (0 + 1) + (2 + 3) in whichever order: the same bits."""
    pairs = c + _by_1(c)
    return pairs + _by_2(pairs)


@nb.njit(**inline)
def _column_sums(c):
    pairs = c + _by_4(c)
    return pairs + _by_8(pairs)


@nb.njit(**inline)
def _sinkhorn(c, eps, iterations):
    top = vmax(c, _by_1(c))
    c = vexp(c - vmax(top, _by_2(top)))
    c = vdiv(c, _row_sums(c)) + eps
    c = vdiv(c, _column_sums(c) + eps)
    for _ in range(iterations - 1):
        c = vdiv(c, _row_sums(c) + eps)
        c = vdiv(c, _column_sums(c) + eps)
    return c


@nb.njit(**inline)
def _mixture(x, stride, weights, n, out):
    """f32 [n] at `out` = the sum of the streams, `stride` bytes apart, by their weights."""
    for i in range(0, 4 * n, VB):
        total = load_f32(x + i) * splat_f32(ld_f32(weights))
        for s in range(1, STREAMS):
            total = fma(load_f32(x + s * stride + i), splat_f32(ld_f32(weights + 4 * s)), total)
        store(out + i, total)


@Op
def spread(a, job, ith, nth, ctl):
    """(x, ldx, n, streams, lds): every stream of a row is a copy of x"""
    x, ldx, n, out, ldo, rows = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), variable(job, ROWS)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        for i in range(0, 4 * n, VB):
            v = load_f32(x + j * ldx + i)
            for s in range(STREAMS):
                store(out + j * ldo + 4 * n * s + i, v)


@Op
def previous(a, job, ith, nth, ctl):
    """(source of `latent_rows`, n, out, ldo): out = the row of the position before, zeros for the first"""
    source, n, out, ldo, rows = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), variable(job, ROWS)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        at, position = out + j * ldo, ld_i64(variable(job, ROW_POSITION) + 8 * j)
        if position == 0:
            for i in range(0, 4 * n, VB):
                store(at + i, splat_f32(nb.float32(0.0)))
            continue
        run_at = variable(job, RUN_TABLE) + ld_i64(variable(job, ROW_RUN) + 8 * j) * 8 * RUN_WORDS
        gather(source, run_at, nb.int64(0), position - 1, position, at)


@Op
def enter(a, job, ith, nth, ctl):
    """(m, ldm, scales f32 [24], bases f32 [24], eps f32, iterations, streams, lds, n, out, ldo)

    Each row's 24 numbers become pre, post and C in place; out = what the sub-layer sees.
    """
    m, ldm, scales, bases, eps = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), splat_f32(ld_f32(a + 8 * 4))
    iterations, x, ldx, n, out, ldo = arg(a, 5), arg(a, 6), arg(a, 7), arg(a, 8), arg(a, 9), arg(a, 10)
    rows = variable(job, ROWS)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        at = m + j * ldm
        combine = at + _COMBINE
        gates = vsigmoid(fma(load_f32(at), load_f32(scales), load_f32(bases)))
        c = fma(load_f32(combine), load_f32(scales + _COMBINE), load_f32(bases + _COMBINE))
        is_pre = vlt(lane_index(), splat_i32(nb.int32(STREAMS)))
        store(at, select(is_pre, gates + eps, gates + gates))
        store(combine, _sinkhorn(c, eps, iterations))
        _mixture(x + j * ldx, 4 * n, at, n, out + j * ldo)


@Op
def leave(a, job, ith, nth, ctl):
    """(m, ldm, streams, lds, n, y, ldy): stream[j] = post[j] * y + sum over i of C[i][j] * stream[i]"""
    m, ldm, x, ldx, n, y, ldy = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5), arg(a, 6)
    rows, stride = variable(job, ROWS), 4 * n
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        post = m + j * ldm + 4 * STREAMS
        c = m + j * ldm + _COMBINE
        for i in range(0, stride, VB):
            at = x + j * ldx + i
            result = load_f32(y + j * ldy + i)
            x0, x1, x2, x3 = (
                load_f32(at), load_f32(at + stride), load_f32(at + 2 * stride), load_f32(at + 3 * stride)
            )  # fmt: skip
            for s in range(STREAMS):
                w = c + 4 * s
                total = result * splat_f32(ld_f32(post + 4 * s))
                total = fma(x0, splat_f32(ld_f32(w)), total)
                total = fma(x1, splat_f32(ld_f32(w + 4 * STREAMS)), total)
                total = fma(x2, splat_f32(ld_f32(w + 8 * STREAMS)), total)
                total = fma(x3, splat_f32(ld_f32(w + 12 * STREAMS)), total)
                store(at + s * stride, total)


@Op
def merge(a, job, ith, nth, ctl):
    """(m, ldm, scales f32 [4], bases f32 [4], eps f32, streams, lds, n, out, ldo, rows)

    out = the streams weighed by ``sigmoid(m * scale + base) + eps``: what the head sees.
    """
    m, ldm, scales, bases, eps = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), splat_f32(ld_f32(a + 8 * 4))
    x, ldx, n, out, ldo = arg(a, 5), arg(a, 6), arg(a, 7), arg(a, 8), arg(a, 9)
    rows = variable(job, arg(a, 10))
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        at = m + j * ldm
        store(at, vsigmoid(fma(load_f32(at), load_f32(scales), load_f32(bases))) + eps)
        _mixture(x + j * ldx, 4 * n, at, n, out + j * ldo)
