"""NVFP4: 64 FP4 weights in sub-blocks of 16 under an E4M3 scale, w = scale * doubled E2M1 value.

GGUF block, 36 bytes    4 scales | 4 x 8 bytes: low nibbles columns 0..7 of the sub-block, high nibbles 8..15

Multiplied as panels of `scaled` codes.
"""

import numba as nb

from runtime.kernels.codebooks import E2M1_DOUBLED
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
from runtime.kernels.simd import entry, f32_from_bits, inline, ld_u8
from runtime.kernels.tape import Op

BLOCK, BLOCK_BYTES = 64, 36


@nb.njit(**inline)
def half_of_e4m3(bits):
    """Half the value of an unsigned E4M3 number (bias 7): the top bit is ignored, the byte 0x7F is 0."""
    exponent, mantissa = bits >> 3 & 15, bits & 7
    if bits == 127:
        return nb.float32(0.0)
    if exponent == 0:
        return nb.float32(mantissa) * nb.float32(2.0**-10)
    return f32_from_bits((exponent + 119) << 23 | mantissa << 20)


@nb.njit(**inline)
def unpack(put, put_scale, src, dst, row):
    for s in range(4):
        scale = half_of_e4m3(nb.int64(ld_u8(src + s)))
        put_scale(dst, row, 16 * s, scale)
        for j in range(8):
            c = nb.int64(ld_u8(src + 4 + 8 * s + j))
            put(dst, row, 16 * s + j, E2M1_DOUBLED[c & 15], scale)
            put(dst, row, 16 * s + 8 + j, E2M1_DOUBLED[c >> 4], scale)


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
