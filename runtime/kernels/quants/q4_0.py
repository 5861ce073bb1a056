"""Q4_0: 32 weights of 4 bits, w = d*(c - 8).

GGUF block, 18 bytes      d f16 | 16 bytes: low nibbles columns 0..15, high nibbles 16..31
panel block, 288 bytes    4 vectors of nibbles | 16 d f16
"""

import numba as nb

from runtime.kernels.blocks import nibbles
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A32_ISUM8, block_bytes
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import VB, entry, inline, ld_f16
from runtime.kernels.steps import HALVES, step_with_zero_point
from runtime.kernels.tape import Op
from runtime.kernels.words import decode_nibbles, put_half, put_word, word_at

BLOCK, BLOCK_BYTES = 32, 18
CODES = 4 * VB
PANEL_BLOCK = CODES + HALVES
ACTIVATIONS = A32_ISUM8
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_with_zero_point(nibbles, CODES)


@nb.njit(**inline)
def pack_block(src, dst, row):
    for v in range(4):
        put_word(dst, v, row, word_at(src + 2 + 4 * v))
    put_half(dst + CODES, row, src)


@nb.njit(**inline)
def decode_block(src, dst):
    decode_nibbles(src + 2, dst, ld_f16(src), 8, nb.float32(-0.0))


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
