"""The op between the q/k/v matmul and attention: rotate queries and keys, write keys and values to tiles."""

import numba as nb
import numpy as np

from runtime.kernels.attention_layer import (
    A_BASE,
    A_DK,
    A_DV,
    A_GROUP,
    A_HEADS,
    A_K_BYTES,
    A_KV_HEADS,
    A_LD_ROPE,
    A_LDO,
    A_LDX,
    A_N_ROT,
    A_OUT,
    A_PAIRING,
    A_PUT_KEY,
    A_PUT_VALUE,
    A_ROPE,
    A_ROTATE,
    A_SHARED,
    A_TILE,
    A_V_BYTES,
    A_X,
    ROTATE_K,
    ROTATE_V,
)
from runtime.kernels.job import ROW_POSITION, ROW_RUN, ROWS, RUN_BLOCKS, RUN_TABLE, RUN_WORDS
from runtime.kernels.rope import NORM, rotate_neox, rotate_norm
from runtime.kernels.simd import (
    LANES,
    butterfly1,
    butterfly2,
    butterfly4,
    butterfly8,
    inline,
    ld_i64,
    load_f32,
    splat_f32,
    store,
)
from runtime.kernels.tape import JOB_VARS, Op, arg, call_op
from runtime.memory.layout import BLOCK, TILE
from runtime.team import grab


@nb.njit(**inline)
def hadamard(x, d):
    """Multiply f32 [d] by the orthonormal Walsh-Hadamard matrix of the largest power of two that divides d.

    It spreads outliers over a whole head before quantisation; applied twice it is the identity, and applied
    to queries and keys alike it leaves their products as they are.
    """
    n = d & -d
    scale = splat_f32(nb.float32(1.0) / np.sqrt(nb.float32(n)))
    for i in range(0, d, LANES):
        store(x + 4 * i, butterfly8(butterfly4(butterfly2(butterfly1(load_f32(x + 4 * i))))))
    half = LANES
    while half < n:
        for i in range(0, d, 2 * half):
            for j in range(i, i + half, LANES):
                p, q = x + 4 * j, x + 4 * (j + half)
                u, v = load_f32(p), load_f32(q)
                store(p, u + v)
                store(q, u - v)
        half *= 2
    for i in range(0, d, LANES):
        store(x + 4 * i, load_f32(x + 4 * i) * scale)


@nb.njit(**inline)
def rotate_row(a, row, table):
    """Rope, then Hadamard where asked for, of one row's heads, in place."""
    heads, dk, dv, n_rot, rotate = (
        arg(a, A_HEADS),
        arg(a, A_DK),
        arg(a, A_DV),
        arg(a, A_N_ROT),
        arg(a, A_ROTATE),
    )
    kv_heads = arg(a, A_KV_HEADS) if arg(a, A_SHARED) == 0 else nb.int64(0)
    for h in range(heads + kv_heads):
        x = row + 4 * h * dk
        if table != 0:
            if arg(a, A_PAIRING) == NORM:
                rotate_norm(x, table, n_rot)
            else:
                rotate_neox(x, table, n_rot)
        if rotate & ROTATE_K:
            hadamard(x, dk)
    if rotate & ROTATE_V:
        for h in range(kv_heads):
            hadamard(row + 4 * ((heads + kv_heads) * dk + h * dv), dv)


@nb.njit(**inline)
def put_row(a, k, v, block, row):
    """Write one position's keys f32 [kv heads][Dk] and values f32 [kv heads][Dv] to a row of a block."""
    dk, dv, k_bytes, v_bytes = arg(a, A_DK), arg(a, A_DV), arg(a, A_K_BYTES), arg(a, A_V_BYTES)
    tile, lane = block + row // TILE * arg(a, A_TILE) + arg(a, A_BASE), row % TILE
    for h in range(arg(a, A_KV_HEADS)):
        keys = tile + h * (k_bytes + v_bytes)
        call_op(arg(a, A_PUT_KEY), k + 4 * h * dk, keys, lane, dk, 0)
        call_op(arg(a, A_PUT_VALUE), v + 4 * h * dv, keys + k_bytes + lane * (v_bytes // TILE), dv, 0, 0)


@Op
def rotate_and_store(args, job, ith, nth, ctl):
    """(descriptor): where keys and values are another layer's, only queries are rotated"""
    a = arg(args, 0)
    heads, kv_heads, dk = arg(a, A_HEADS), arg(a, A_KV_HEADS), arg(a, A_DK)
    rows, positions = ld_i64(job + JOB_VARS + 8 * ROWS), ld_i64(job + JOB_VARS + 8 * ROW_POSITION)
    row_run, run_table = ld_i64(job + JOB_VARS + 8 * ROW_RUN), ld_i64(job + JOB_VARS + 8 * RUN_TABLE)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        row = arg(a, A_X) + j * arg(a, A_LDX)
        table = arg(a, A_ROPE) + j * arg(a, A_LD_ROPE) if arg(a, A_ROPE) != 0 else nb.int64(0)
        rotate_row(a, row, table)
        if arg(a, A_SHARED) != 0:
            continue
        position = ld_i64(positions + 8 * j)
        run_at = run_table + ld_i64(row_run + 8 * j) * 8 * RUN_WORDS
        block = ld_i64(ld_i64(run_at + 8 * (RUN_BLOCKS + arg(a, A_GROUP))) + 8 * (position // BLOCK))
        k = row + 4 * heads * dk
        put_row(a, k, k + 4 * kv_heads * dk, block, position % BLOCK)


@Op
def clear_rows(layer, block, first, end, zeros):
    """Rows [first, end) of a block become those of zeros, f32 [kv heads * max(Dk, Dv)]: not part of a tape"""
    for row in range(first, end):
        put_row(layer, zeros, zeros, block, row)


@Op
def rotate_back(args, job, ith, nth, ctl):
    """(descriptor): undo the rotation of values on the attention output"""
    a = arg(args, 0)
    rows = ld_i64(job + JOB_VARS + 8 * ROWS)
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        for h in range(arg(a, A_HEADS)):
            hadamard(arg(a, A_OUT) + j * arg(a, A_LDO) + 4 * h * arg(a, A_DV), arg(a, A_DV))
