"""Q4_K: 256 weights of 4 bits in sub-blocks of 32, w = d*scale*c - dmin*minimum.

GGUF block, 144 bytes     d f16 | dmin f16 | 12 bytes of 6-bit scales and minima | 4 x 32 bytes: chunk t holds
                          columns 64t.. in the low and 64t+32.. in the high nibbles
panel block, 2368 bytes   16 d f16 | 16 dmin f16 | [8][16] scale u8 | [8][16] minimum u8 | [8] nibbles
"""

import numba as nb

from runtime.kernels.blocks import nibbles
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A256_FSUM, block_bytes
from runtime.kernels.quants.k_layout import put_nibble_plane, scale_and_minimum
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import LANES, VB, entry, inline, ld_f16, ld_u8, st_f32
from runtime.kernels.steps import HALVES
from runtime.kernels.steps_k import step_scales_and_minima
from runtime.kernels.tape import Op
from runtime.kernels.words import put_byte, put_half

BLOCK, BLOCK_BYTES = 256, 144
CODES = 4 * VB
FIRST = 2 * HALVES + 16 * LANES
PANEL_BLOCK = FIRST + 8 * CODES
ACTIVATIONS = A256_FSUM
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_scales_and_minima(nibbles, CODES)


@nb.njit(**inline)
def pack_block(src, dst, row):
    put_half(dst, row, src)
    put_half(dst + HALVES, row, src + 2)
    for k in range(8):
        scale, minimum = scale_and_minimum(src + 4, k)
        put_byte(dst + 2 * HALVES + LANES * k, row, scale)
        put_byte(dst + 2 * HALVES + LANES * (8 + k), row, minimum)
        put_nibble_plane(dst + FIRST + CODES * k, row, src + 16 + 32 * (k // 2), 4 * (k % 2))


@nb.njit(**inline)
def decode_block(src, dst):
    d, dmin = ld_f16(src), ld_f16(src + 2)
    for k in range(8):
        scale, minimum = scale_and_minimum(src + 4, k)
        dl, m = d * nb.float32(scale), dmin * nb.float32(minimum)
        for j in range(32):
            c = nb.int64(ld_u8(src + 16 + 32 * (k // 2) + j)) >> (4 * (k % 2)) & 15
            st_f32(dst + 4 * (32 * k + j), dl * nb.float32(c) - m)


few, wide, mid = make_kernels(step, BLOCK, PANEL_BLOCK, ACTIVATIONS)


@Op
def matmul(a, job, ith, nth, ctl):
    run_matmul(few, wide, mid, BLOCK, PANEL_BLOCK, ACT_BLOCK, a, job, nth, ctl)


@Op
def embed(a, job, ith, nth, ctl):
    run_embed(decode_block, BLOCK, BLOCK_BYTES, a, job, nth, ctl)


@nb.njit(**entry)
def pack(src, n_rows, k, dst, p0, p1):
    run_pack(pack_block, BLOCK, BLOCK_BYTES, PANEL_BLOCK, src, n_rows, k, dst, p0, p1)


@nb.njit(**entry)
def decode(src, n_rows, k, dst):
    run_decode(decode_block, BLOCK, BLOCK_BYTES, src, n_rows, k, dst)
