"""Q3_K: 256 weights of 3 bits in sub-blocks of 16, w = d*(scale - 32)*(c - 4).

GGUF block, 110 bytes     32 bytes of third bits: column c at bit c/32 of byte c%32 | 64 bytes of pairs as
                          Q2_K | 12 bytes of 6-bit scales | d f16
panel block, 1824 bytes   16 d f16 | [16][16] scale - 32 i8 | [8] pairs and bits
"""

import numba as nb

from runtime.kernels.blocks import pairs_and_bits
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A256_ISUM4, block_bytes
from runtime.kernels.quants.k_layout import put_bit_plane, put_pair_plane, scale_q3
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import LANES, VB, entry, inline, ld_f16, ld_u8, st_f32
from runtime.kernels.steps import HALVES
from runtime.kernels.steps_k import step_scales_of_16
from runtime.kernels.tape import Op
from runtime.kernels.words import put_byte, put_half

BLOCK, BLOCK_BYTES = 256, 110
CODES = 3 * VB
FIRST = HALVES + 16 * LANES
PANEL_BLOCK = FIRST + 8 * CODES
ACTIVATIONS = A256_ISUM4
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_scales_of_16(pairs_and_bits, CODES)


@nb.njit(**inline)
def pack_block(src, dst, row):
    put_half(dst, row, src + 108)
    for k in range(16):
        put_byte(dst + HALVES + LANES * k, row, scale_q3(src + 96, k))
    for b in range(8):
        at = dst + FIRST + CODES * b
        put_pair_plane(at, 0, row, src + 32 + 32 * (b // 4), 2 * (b % 4))
        put_bit_plane(at, 2, row, src, b)


@nb.njit(**inline)
def decode_block(src, dst):
    d = ld_f16(src + 108)
    for g in range(16):
        dl = d * nb.float32(scale_q3(src + 96, g))
        for j in range(16):
            column = 16 * (g % 2) + j
            low = nb.int64(ld_u8(src + 32 + 32 * (g // 8) + column)) >> (2 * (g // 2 % 4)) & 3
            high = nb.int64(ld_u8(src + column)) >> (g // 2) & 1
            st_f32(dst + 4 * (16 * g + j), dl * nb.float32((low | high << 2) - 4))


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
