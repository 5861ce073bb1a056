"""IQ2_XS: 256 weights, w = d*(0.5 + scale)/4 * grid value * sign, one scale per 16.

GGUF block, 74 bytes    d f16 | 32 u16: grid index 9 bits, signs 7 bits | 8 bytes of scale nibbles

Multiplied as panels of `scaled` codes.
"""

import numba as nb

from runtime.kernels.grids import IQ2_XS
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quants.iq_layout import put_signed, with_parity
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

BLOCK, BLOCK_BYTES = 256, 74


@nb.njit(**inline)
def unpack(put, put_scale, src, dst, row):
    d = ld_f16(src)
    for g in range(16):
        nibble = nb.int64(ld_u8(src + 66 + g // 2)) >> (4 * (g % 2)) & 15
        scale = d * (nb.float32(0.5) + nb.float32(nibble)) * nb.float32(0.25)
        put_scale(dst, row, 16 * g, scale)
        for i in range(2):
            q = nb.int64(ld_i16(src + 2 + 2 * (2 * g + i))) & 0xFFFF
            put_signed(put, IQ2_XS, 8, q & 511, with_parity(q >> 9), dst, row, 16 * g + 8 * i, scale)


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
