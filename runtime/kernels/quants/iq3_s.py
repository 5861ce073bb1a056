"""IQ3_S: 256 weights, w = d*(1 + 2*scale) * grid value * sign, one scale per 32.

GGUF block, 110 bytes   d f16 | 64 low bytes of grid indices | 8 bytes of index tops | 32 bytes of signs |
                        4 bytes of scale nibbles

Multiplied as panels of `scaled` codes.
"""

import numba as nb

from runtime.kernels.grids import IQ3_S
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quants.iq_layout import put_signed
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

BLOCK, BLOCK_BYTES = 256, 110


@nb.njit(**inline)
def unpack(put, put_scale, src, dst, row):
    d = ld_f16(src)
    for b in range(8):
        nibble = nb.int64(ld_u8(src + 106 + b // 2)) >> (4 * (b % 2)) & 15
        scale = d * nb.float32(1 + 2 * nibble)
        put_scale(dst, row, 32 * b, scale)
        put_scale(dst, row, 32 * b + 16, scale)
        for e in range(8):
            top = nb.int64(ld_u8(src + 66 + b)) >> e & 1
            index = nb.int64(ld_u8(src + 2 + 8 * b + e)) | top << 8
            signs = nb.int64(ld_u8(src + 74 + 4 * b + e // 2)) >> (4 * (e % 2))
            put_signed(put, IQ3_S, 4, index, signs, dst, row, 32 * b + 4 * e, scale)


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
