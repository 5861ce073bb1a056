"""Steps of the formats with super-blocks of 256 k: small integer scales inside, one f32 scale outside.

The sums of 32 or 16 k are exact integers. They are weighted by their integer scales in f32, in ascending
order, and the super-block's total goes into the result with one fused multiply-add by d times the
activations' scale. `codes` is the bytes of codes per 32 k.
"""

import numba as nb

from runtime.kernels.blocks import (
    biased_start,
    load_high4_f32,
    load_low4_f32,
    make_dot,
    make_stream,
)
from runtime.kernels.simd import LANES, inline, load_f16, load_s8_f32, load_u8_f32, splat_f32
from runtime.kernels.steps import HALVES
from runtime.kernels.tiles import (
    make_tile_zeros,
    tile_fma_f32,
    tile_fma_i32_noscale,
    tile_fma_splat,
    tile_load_splat_i32,
)


def step_scales_and_minima(decode, codes):
    """16 d | 16 dmin | [8][16] u8 scale | [8][16] u8 minimum | [8] codes; activations with f32 sums of 32."""
    dot = make_dot(decode)
    scales, minima, first = 2 * HALVES, 2 * HALVES + 8 * LANES, 2 * HALVES + 16 * LANES

    def step(nc, ahead):
        zero_i, zero_f = make_tile_zeros(nc)
        stream = make_stream(codes + 2 * LANES if ahead else 0)
        d, s = 256 * nc, 260 * nc

        @nb.njit(**inline)
        def step_nc(acc, w, x):
            minus_dmin = splat_f32(nb.float32(-1.0)) * load_f16(w + HALVES)
            total = zero_f()
            for i in range(8):
                stream(w + (codes + 2 * LANES) * i)
                sums = dot(zero_i(), w + first + codes * i, x + 32 * nc * i)
                total = tile_fma_i32_noscale(total, sums, load_u8_f32(w + scales + LANES * i))
                m = minus_dmin * load_u8_f32(w + minima + LANES * i)
                acc = tile_fma_splat(acc, m, x + s + 4 * nc * i, 4)
            return tile_fma_f32(acc, total, load_f16(w), x + d, 4)

        return step_nc

    return step


def step_nibble_scales_and_minima(decode_half, codes):
    """16 d | 16 dmin | [16][16] scale in the low, minimum in the high nibble | [8] codes; f32 sums of 16."""
    halves = make_dot(decode_half(0)), make_dot(decode_half(1))
    first = 2 * HALVES + 16 * LANES

    def step(nc, ahead):
        zero_i, zero_f = make_tile_zeros(nc)
        stream = make_stream(codes + 2 * LANES if ahead else 0)
        d, s = 256 * nc, 260 * nc
        dot_first, dot_second = halves

        @nb.njit(**inline)
        def step_nc(acc, w, x):
            minus_dmin = splat_f32(nb.float32(-1.0)) * load_f16(w + HALVES)
            total = zero_f()
            for i in range(8):
                stream(w + (codes + 2 * LANES) * i)
                both, sx = w + 2 * HALVES + 2 * LANES * i, x + s + 8 * nc * i
                cw, cx = w + first + codes * i, x + 32 * nc * i
                total = tile_fma_i32_noscale(total, dot_first(zero_i(), cw, cx), load_low4_f32(both))
                acc = tile_fma_splat(acc, minus_dmin * load_high4_f32(both), sx, 4)
                both, sx = both + LANES, sx + 4 * nc
                total = tile_fma_i32_noscale(total, dot_second(zero_i(), cw, cx), load_low4_f32(both))
                acc = tile_fma_splat(acc, minus_dmin * load_high4_f32(both), sx, 4)
            return tile_fma_f32(acc, total, load_f16(w), x + d, 4)

        return step_nc

    return step


def step_scales_of_16(decode_half, codes):
    """16 d | [16][16] i8 scale | [8] codes with a zero point; activations with i32 sums of 16."""
    halves = make_dot(decode_half(0)), make_dot(decode_half(1))
    first = HALVES + 16 * LANES

    def step(nc, ahead):
        zero_i, zero_f = make_tile_zeros(nc)
        stream = make_stream(codes + 2 * LANES if ahead else 0)
        d, s = 256 * nc, 260 * nc
        dot_first, dot_second = halves

        @nb.njit(**inline)
        def step_nc(acc, w, x):
            total = zero_f()
            for i in range(8):
                stream(w + (codes + 2 * LANES) * i)
                scale, sx = w + HALVES + 2 * LANES * i, x + s + 8 * nc * i
                cw, cx = w + first + codes * i, x + 32 * nc * i
                sums = dot_first(tile_load_splat_i32(zero_i(), sx, 4), cw, cx)
                total = tile_fma_i32_noscale(total, sums, load_s8_f32(scale))
                sums = dot_second(tile_load_splat_i32(zero_i(), sx + 4 * nc, 4), cw, cx)
                total = tile_fma_i32_noscale(total, sums, load_s8_f32(scale + LANES))
            return tile_fma_f32(acc, total, load_f16(w), x + d, 4)

        return step_nc

    return step


def step_scales_of_32(decode, codes):
    """16 d | [8][16] i8 scale | [8] codes that yield biased values; activations with i32 sums of 32."""
    dot = make_dot(decode, biased=True)
    first = HALVES + 8 * LANES

    def step(nc, ahead):
        zero_i, zero_f = make_tile_zeros(nc)
        stream = make_stream(codes + LANES if ahead else 0)
        d, s = 256 * nc, 260 * nc

        @nb.njit(**inline)
        def step_nc(acc, w, x):
            total = zero_f()
            for i in range(8):
                stream(w + (codes + LANES) * i)
                start = biased_start(zero_i(), x + s + 4 * nc * i, 4)
                sums = dot(start, w + first + codes * i, x + 32 * nc * i)
                total = tile_fma_i32_noscale(total, sums, load_s8_f32(w + HALVES + LANES * i))
            return tile_fma_f32(acc, total, load_f16(w), x + d, 4)

        return step_nc

    return step
