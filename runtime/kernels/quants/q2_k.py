"""Q2_K: 256 weights of 2 bits in sub-blocks of 16, w = d*scale*c - dmin*minimum.

GGUF block, 84 bytes      16 bytes: scale in the low, minimum in the high nibble | 64 bytes of pairs |
                          d f16 | dmin f16. Block b = 4t + p of 32 columns: pairs at 32t, bits 2p
panel block, 1344 bytes   16 d f16 | 16 dmin f16 | [16][16] scale and minimum | [8] pairs
"""

import numba as nb

from runtime.kernels.blocks import pairs
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A256_FSUM_16, block_bytes
from runtime.kernels.quants.k_layout import put_pair_plane
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.simd import LANES, VB, entry, inline, ld_f16, ld_u8, st_f32
from runtime.kernels.steps import HALVES
from runtime.kernels.steps_k import step_nibble_scales_and_minima
from runtime.kernels.tape import Op
from runtime.kernels.words import put_byte, put_half

BLOCK, BLOCK_BYTES = 256, 84
CODES = 2 * VB
FIRST = 2 * HALVES + 16 * LANES
PANEL_BLOCK = FIRST + 8 * CODES
ACTIVATIONS = A256_FSUM_16
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = step_nibble_scales_and_minima(pairs, CODES)


@nb.njit(**inline)
def pack_block(src, dst, row):
    put_half(dst, row, src + 80)
    put_half(dst + HALVES, row, src + 82)
    for k in range(16):
        put_byte(dst + 2 * HALVES + LANES * k, row, ld_u8(src + k))
    for b in range(8):
        put_pair_plane(dst + FIRST + CODES * b, 0, row, src + 16 + 32 * (b // 4), 2 * (b % 4))


@nb.njit(**inline)
def decode_block(src, dst):
    d, dmin = ld_f16(src + 80), ld_f16(src + 82)
    for g in range(16):
        both = nb.int64(ld_u8(src + g))
        dl, m = d * nb.float32(both & 15), dmin * nb.float32(both >> 4)
        for j in range(16):
            c = nb.int64(ld_u8(src + 16 + 32 * (g // 8) + 16 * (g % 2) + j)) >> (2 * (g // 2 % 4)) & 3
            st_f32(dst + 4 * (16 * g + j), dl * nb.float32(c) - m)


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
