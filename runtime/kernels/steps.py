"""Steps of the formats with blocks of 32 k: integer sums of a block, then one or two f32 operations.

Each maker takes a decoder and the bytes of codes in a panel block; scales follow the codes. It returns
``step(nc, ahead)`` as `panel` wants it, where `ahead` asks for prefetching.
"""

import numba as nb

from runtime.kernels.blocks import biased_start, make_dot, make_stream
from runtime.kernels.simd import VB, i32v, inline, load_f16
from runtime.kernels.tiles import make_tile_zero, tile_fma_i32, tile_fma_splat, tile_load_splat_i32

HALVES = VB // 2  # bytes of 16 f16 scales


def step_with_minimum(decode, codes):
    """w = d*c + m: codes | 16 f16 d | 16 f16 m; activations with f32 sums."""
    dot = make_dot(decode)

    def step(nc, ahead):
        zero, stream = make_tile_zero(i32v, nc), make_stream(codes + 2 * HALVES if ahead else 0)
        d, s = 32 * nc, 36 * nc

        @nb.njit(**inline)
        def step_nc(acc, w, x):
            stream(w)
            sums = dot(zero(), w, x)
            acc = tile_fma_i32(acc, sums, load_f16(w + codes), x + d, 4)
            return tile_fma_splat(acc, load_f16(w + codes + HALVES), x + s, 4)

        return step_nc

    return step


def step_with_zero_point(decode, codes, biased=False, load_scale=load_f16):
    """w = d*(c - zero): codes | 16 f16 d (or bf16, by `load_scale`); activations with i32 sums."""
    dot = make_dot(decode, biased)
    start = biased_start if biased else tile_load_splat_i32

    def step(nc, ahead):
        zero, stream = make_tile_zero(i32v, nc), make_stream(codes + HALVES if ahead else 0)
        d, s = 32 * nc, 36 * nc

        @nb.njit(**inline)
        def step_nc(acc, w, x):
            stream(w)
            sums = dot(start(zero(), x + s, 4), w, x)
            return tile_fma_i32(acc, sums, load_scale(w + codes), x + d, 4)

        return step_nc

    return step
