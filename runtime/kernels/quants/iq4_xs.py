"""IQ4_XS: 256 weights of 4 bits that number a value, in sub-blocks of 32: w = d*(scale - 32)*N16[c].

GGUF block, 136 bytes     d f16 | high pairs of scales u16 | low nibbles of scales, 4 bytes | 8 x 16 nibbles
panel block, 2208 bytes   16 d f16 | [8][16] scale - 32 i8 | [8] nibbles
"""

import numba as nb

from runtime.kernels.blocks import looked_up
from runtime.kernels.codebooks import N16
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A256_ISUM128, block_bytes
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import LANES, VB, entry, inline, ld_f16, ld_i16, ld_u8
from runtime.kernels.steps import HALVES
from runtime.kernels.steps_k import step_scales_of_32
from runtime.kernels.tape import Op
from runtime.kernels.words import decode_codebook, put_byte, put_half, put_word, word_at

BLOCK, BLOCK_BYTES = 256, 136
CODES = 4 * VB
FIRST = HALVES + 8 * LANES
PANEL_BLOCK = FIRST + 8 * CODES
ACTIVATIONS = A256_ISUM128
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_scales_of_32(looked_up(N16), CODES)


@nb.njit(**inline)
def scale_of(src, k):
    low = nb.int64(ld_u8(src + 4 + k // 2)) >> (4 * (k % 2)) & 15
    return (low | (nb.int64(ld_i16(src + 2)) >> (2 * k) & 3) << 4) - 32


@nb.njit(**inline)
def pack_block(src, dst, row):
    put_half(dst, row, src)
    for k in range(8):
        put_byte(dst + HALVES + LANES * k, row, scale_of(src, k))
        for v in range(4):
            put_word(dst + FIRST + CODES * k, v, row, word_at(src + 8 + 16 * k + 4 * v))


@nb.njit(**inline)
def decode_block(src, dst):
    d = ld_f16(src)
    for k in range(8):
        decode_codebook(src + 8 + 16 * k, dst + 128 * k, d * nb.float32(scale_of(src, k)), N16)


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
