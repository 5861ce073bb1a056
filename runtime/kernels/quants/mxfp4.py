"""MXFP4: 32 FP4 weights under a power of two, w = 2^(e - 128) * doubled E2M1 value.

GGUF block, 17 bytes      e u8 | 16 bytes of nibbles as Q4_0
panel block, 288 bytes    4 vectors of nibbles | 16 scales bf16: exact, with zero for padding
"""

import numba as nb

from runtime.kernels.blocks import looked_up
from runtime.kernels.codebooks import E2M1_DOUBLED
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A32_ISUM128, block_bytes
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import VB, entry, f32_from_bits, inline, ld_u8, load_bf16, st_i16
from runtime.kernels.steps import HALVES, step_with_zero_point
from runtime.kernels.tape import Op
from runtime.kernels.words import decode_codebook, put_word, word_at

BLOCK, BLOCK_BYTES = 32, 17
CODES = 4 * VB
PANEL_BLOCK = CODES + HALVES
ACTIVATIONS = A32_ISUM128
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_with_zero_point(looked_up(E2M1_DOUBLED), CODES, biased=True, load_scale=load_bf16)


@nb.njit(**inline)
def scale_bits(src):
    """Bits of 2^(e - 128) as f32; the two smallest are subnormal."""
    e = nb.int64(ld_u8(src))
    return 0x00200000 << e if e < 2 else (e - 1) << 23


@nb.njit(**inline)
def pack_block(src, dst, row):
    for v in range(4):
        put_word(dst, v, row, word_at(src + 1 + 4 * v))
    st_i16(dst + CODES + 2 * row, nb.int16(scale_bits(src) >> 16))


@nb.njit(**inline)
def decode_block(src, dst):
    decode_codebook(src + 1, dst, f32_from_bits(scale_bits(src)), E2M1_DOUBLED)


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
