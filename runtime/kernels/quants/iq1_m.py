"""IQ1_M: 256 weights as IQ1_S, one odd scale per 16; d is spread over the top nibbles of the scale words.

GGUF block, 56 bytes    32 low bytes of grid indices | 16 bytes of nibbles: index top 3 bits, sign of 1/8 |
                        4 u16: four scales of 3 bits, a nibble of d f16

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
from runtime.kernels.simd import entry, f16_from_bits, inline, ld_i16, ld_u8
from runtime.kernels.tape import Op

BLOCK, BLOCK_BYTES = 256, 56


@nb.njit(**inline)
def scale_word(src, i):
    return nb.int64(ld_i16(src + 48 + 2 * i)) & 0xFFFF


@nb.njit(**inline)
def unpack(put, put_scale, src, dst, row):
    bits = nb.int64(0)
    for i in range(4):
        bits |= (scale_word(src, i) >> 12) << (4 * i)
    d = f16_from_bits(bits)
    for g in range(16):
        three = scale_word(src, g // 4) >> (3 * (g % 4)) & 7
        scale = d * nb.float32(2 * three + 1) * nb.float32(0.125)
        put_scale(dst, row, 16 * g, scale)
        for i in range(2 * g, 2 * g + 2):
            x = nb.int64(ld_u8(src + 32 + i // 2)) >> (4 * (i % 2)) & 15
            index = nb.int64(ld_u8(src + i)) | (x & 7) << 8
            put_eighths(put, IQ1_S, index, -1 if x & 8 else 1, dst, row, 8 * i, scale)


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
