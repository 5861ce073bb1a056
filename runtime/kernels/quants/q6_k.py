"""Q6_K: 256 weights of 6 bits in sub-blocks of 16, w = d*scale*(c - 32).

GGUF block, 210 bytes     128 bytes of nibbles | 64 bytes of top pairs | 16 scales i8 | d f16.
                          Block b = 4t + p of 32 columns: nibbles at 64t + 32(p&1), low for p < 2;
                          pairs at 32t, bits 2p
panel block, 3360 bytes   16 d f16 | [16][16] scale i8 | [8] nibbles and pairs
"""

import numba as nb

from runtime.kernels.blocks import nibbles_and_pairs
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A256_ISUM32, block_bytes
from runtime.kernels.quants.k_layout import put_nibble_plane, put_pair_plane
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import LANES, VB, entry, inline, ld_f16, ld_i8, ld_u8, st_f32
from runtime.kernels.steps import HALVES
from runtime.kernels.steps_k import step_scales_of_16
from runtime.kernels.tape import Op
from runtime.kernels.words import put_byte, put_half

BLOCK, BLOCK_BYTES = 256, 210
CODES = 6 * VB
FIRST = HALVES + 16 * LANES
PANEL_BLOCK = FIRST + 8 * CODES
ACTIVATIONS = A256_ISUM32
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_scales_of_16(nibbles_and_pairs, CODES)


@nb.njit(**inline)
def pack_block(src, dst, row):
    put_half(dst, row, src + 208)
    for k in range(16):
        put_byte(dst + HALVES + LANES * k, row, ld_i8(src + 192 + k))
    for b in range(8):
        t, p = b // 4, b % 4
        at = dst + FIRST + CODES * b
        put_nibble_plane(at, row, src + 64 * t + 32 * (p & 1), 4 * (p >> 1))
        put_pair_plane(at, 4, row, src + 128 + 32 * t, 2 * p)


@nb.njit(**inline)
def decode_block(src, dst):
    d = ld_f16(src + 208)
    for b in range(8):
        t, p = b // 4, b % 4
        for j in range(32):
            dl = d * nb.float32(ld_i8(src + 192 + 2 * b + j // 16))
            low = nb.int64(ld_u8(src + 64 * t + 32 * (p & 1) + j)) >> (4 * (p >> 1)) & 15
            high = nb.int64(ld_u8(src + 128 + 32 * t + j)) >> (2 * p) & 3
            st_f32(dst + 4 * (32 * b + j), dl * nb.float32((low | high << 4) - 32))


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
