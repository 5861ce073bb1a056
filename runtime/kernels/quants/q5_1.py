"""Q5_1: 32 weights of 5 bits, w = d*c + m.

GGUF block, 24 bytes      d f16 | m f16 | fifth bits u32, bit number = column | 16 bytes of nibbles as Q4_0
panel block, 384 bytes    4 vectors of nibbles | 1 vector of fifth bits | 16 d f16 | 16 m f16
"""

import numba as nb

from runtime.kernels.blocks import nibbles_and_bits
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A32_FSUM, block_bytes
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import VB, entry, inline, ld_f16
from runtime.kernels.steps import HALVES, step_with_minimum
from runtime.kernels.tape import Op
from runtime.kernels.words import bit_plane_word, decode_nibbles_and_bits, put_half, put_word, word_at

BLOCK, BLOCK_BYTES = 32, 24
CODES = 5 * VB
PANEL_BLOCK = CODES + 2 * HALVES
ACTIVATIONS = A32_FSUM
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_with_minimum(nibbles_and_bits, CODES)


@nb.njit(**inline)
def pack_block(src, dst, row):
    for v in range(4):
        put_word(dst, v, row, word_at(src + 8 + 4 * v))
    put_word(dst, 4, row, bit_plane_word(word_at(src + 4)))
    put_half(dst + CODES, row, src)
    put_half(dst + CODES + HALVES, row, src + 2)


@nb.njit(**inline)
def decode_block(src, dst):
    decode_nibbles_and_bits(src + 8, word_at(src + 4), dst, ld_f16(src), 0, ld_f16(src + 2))


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
