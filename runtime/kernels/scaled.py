"""Weight types without a panel layout of their own: small signed codes times an f32 scale per 16 columns.

Codebook, ternary and FP4 types decode to whole numbers in -63..63 times a scale. As panels they take 10
bits a weight whatever they took in the file; sums stay exact integers, as for the other types.

    panel block, 640 bytes per 32 k    8 vectors of code + 64 | [2][16] scales f32

A type gives ``unpack(put, put_scale, src, dst, row)``: for every column of the GGUF block at `src` in any
order ``put(dst, row, column, code, scale)``, and for every 16 columns ``put_scale(dst, row, column, scale)``.
The same function packs panels and decodes rows.
"""

import numba as nb

from runtime.kernels.blocks import half_bytes, make_dot, make_stream
from runtime.kernels.quantise import A32_ISUM64_16, block_bytes
from runtime.kernels.simd import LANES, VB, i32v, inline, load_f32, st_f32, st_i8
from runtime.kernels.tiles import make_tile_zero, tile_fma_i32, tile_load_splat_i32

PANEL_K = 32
CODES = 8 * VB
PANEL_BLOCK = CODES + 2 * VB
ACTIVATIONS = A32_ISUM64_16
ACT_BLOCK = block_bytes(ACTIVATIONS)
ZERO = 64

_dot_first, _dot_second = make_dot(half_bytes(0)), make_dot(half_bytes(1))


def step(nc, ahead):
    zero, stream = make_tile_zero(i32v, nc), make_stream(PANEL_BLOCK if ahead else 0)
    d, s = 32 * nc, 36 * nc

    @nb.njit(**inline)
    def step_nc(acc, w, x):
        stream(w)
        sums = _dot_first(tile_load_splat_i32(zero(), x + s, 4), w, x)
        acc = tile_fma_i32(acc, sums, load_f32(w + CODES), x + d, 4)
        sums = _dot_second(tile_load_splat_i32(zero(), x + s + 4 * nc, 4), w, x)
        return tile_fma_i32(acc, sums, load_f32(w + CODES + VB), x + d, 4)

    return step_nc


@nb.njit(**inline)
def panel_put(dst, row, column, code, scale):
    at = dst + column // PANEL_K * PANEL_BLOCK
    st_i8(at + VB * (column % PANEL_K // 4) + 4 * row + column % 4, nb.int8(code + ZERO))


@nb.njit(**inline)
def panel_put_scale(dst, row, column, scale):
    at = dst + column // PANEL_K * PANEL_BLOCK + CODES
    st_f32(at + VB * (column % PANEL_K // LANES) + 4 * row, scale)


@nb.njit(**inline)
def row_put(dst, row, column, code, scale):
    st_f32(dst + 4 * column, scale * nb.float32(code))


@nb.njit(**inline)
def row_put_scale(dst, row, column, scale):
    pass
