"""Q1_0: 128 weights of 1 bit, w = bit ? d : -d.

GGUF block, 18 bytes    d f16 | 16 bytes, bit j%8 of byte j/8

Multiplied as panels of `scaled` codes.
"""

import numba as nb

from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.scaled import (
    ACT_BLOCK,
    ACTIVATIONS,
    PANEL_BLOCK,
    PANEL_K,
    panel_put,
    panel_put_scale,
    row_put,
    row_put_scale,
    step,
)
from runtime.kernels.simd import entry, inline, ld_f16, ld_u8
from runtime.kernels.tape import Op

BLOCK, BLOCK_BYTES = 128, 18


@nb.njit(**inline)
def unpack(put, put_scale, src, dst, row):
    d = ld_f16(src)
    for j in range(BLOCK):
        put(dst, row, j, 2 * (nb.int64(ld_u8(src + 2 + j // 8)) >> (j % 8) & 1) - 1, d)
    for j in range(0, BLOCK, 16):
        put_scale(dst, row, j, d)


@nb.njit(**inline)
def pack_block(src, dst, row):
    unpack(panel_put, panel_put_scale, src, dst, row)


@nb.njit(**inline)
def decode_block(src, dst):
    unpack(row_put, row_put_scale, src, dst, 0)


few, wide, mid = make_kernels(step, PANEL_K, PANEL_BLOCK, ACTIVATIONS)


@Op
def matmul(a, job, ith, nth, ctl):
    run_matmul(few, wide, mid, PANEL_K, PANEL_BLOCK, ACT_BLOCK, a, job, nth, ctl)


@Op
def embed(a, job, ith, nth, ctl):
    run_embed(decode_block, BLOCK, BLOCK_BYTES, a, job, nth, ctl)


@nb.njit(**entry)
def pack(src, n_rows, k, dst, p0, p1):
    run_pack(pack_block, BLOCK, BLOCK_BYTES, BLOCK // PANEL_K * PANEL_BLOCK, src, n_rows, k, dst, p0, p1)


@nb.njit(**entry)
def decode(src, n_rows, k, dst):
    run_decode(decode_block, BLOCK, BLOCK_BYTES, src, n_rows, k, dst)
