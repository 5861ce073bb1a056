"""IQ4_NL: 32 weights of 4 bits that number a value, w = d*N16[c].

GGUF block, 18 bytes      d f16 | 16 bytes of nibbles as Q4_0
panel block, 288 bytes    4 vectors of nibbles | 16 d f16
"""

import numba as nb

from runtime.kernels.blocks import looked_up
from runtime.kernels.codebooks import N16
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A32_ISUM128, block_bytes
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import VB, entry, inline, ld_f16
from runtime.kernels.steps import HALVES, step_with_zero_point
from runtime.kernels.tape import Op
from runtime.kernels.words import decode_codebook, put_half, put_word, word_at

BLOCK, BLOCK_BYTES = 32, 18
CODES = 4 * VB
PANEL_BLOCK = CODES + HALVES
ACTIVATIONS = A32_ISUM128
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_with_zero_point(looked_up(N16), CODES, biased=True)


@nb.njit(**inline)
def pack_block(src, dst, row):
    for v in range(4):
        put_word(dst, v, row, word_at(src + 2 + 4 * v))
    put_half(dst + CODES, row, src)


@nb.njit(**inline)
def decode_block(src, dst):
    decode_codebook(src + 2, dst, ld_f16(src), N16)


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
