"""IQ1_S: 256 weights, w = d*scale * (grid value +- 1/8), grid values -1, 0, 1; one odd scale per 32.

GGUF block, 50 bytes    d f16 | 32 low bytes of grid indices | 8 u16: 4 index tops of
                        3 bits, scale 3 bits, sign of 1/8

Multiplied as panels of `scaled` codes.
"""

import numba as nb

from runtime.kernels.grids import IQ1_S
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quants.iq_layout import put_eighths
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
from runtime.kernels.simd import entry, inline, ld_f16, ld_i16, ld_u8
from runtime.kernels.tape import Op

BLOCK, BLOCK_BYTES = 256, 50


@nb.njit(**inline)
def unpack(put, put_scale, src, dst, row):
    d = ld_f16(src)
    for b in range(8):
        h = nb.int64(ld_i16(src + 34 + 2 * b)) & 0xFFFF
        scale = d * nb.float32(2 * (h >> 12 & 7) + 1) * nb.float32(0.125)
        delta = -1 if h & 0x8000 else 1
        put_scale(dst, row, 32 * b, scale)
        put_scale(dst, row, 32 * b + 16, scale)
        for i in range(4):
            index = nb.int64(ld_u8(src + 2 + 4 * b + i)) | (h >> (3 * i) & 7) << 8
            put_eighths(put, IQ1_S, index, delta, dst, row, 32 * b + 8 * i, scale)


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
