"""Q8_0: 32 weights of 8 bits, w = d*q.

GGUF block, 34 bytes      d f16 | 32 q i8
panel block, 544 bytes    8 vectors of q + 128 | 16 d f16
"""

import numba as nb

from runtime.kernels.blocks import whole_bytes
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A32_ISUM128, block_bytes
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import VB, entry, inline, ld_f16, ld_i8, st_f32
from runtime.kernels.steps import HALVES, step_with_zero_point
from runtime.kernels.tape import Op
from runtime.kernels.words import put_half, put_word, word_at

BLOCK, BLOCK_BYTES = 32, 34
CODES = 8 * VB
PANEL_BLOCK = CODES + HALVES
ACTIVATIONS = A32_ISUM128
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_with_zero_point(whole_bytes, CODES, biased=True)


@nb.njit(**inline)
def pack_block(src, dst, row):
    for v in range(8):
        put_word(dst, v, row, word_at(src + 2 + 4 * v) ^ 0x80808080)
    put_half(dst + CODES, row, src)


@nb.njit(**inline)
def decode_block(src, dst):
    d = ld_f16(src)
    for j in range(32):
        st_f32(dst + 4 * j, d * nb.float32(ld_i8(src + 2 + j)))


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
