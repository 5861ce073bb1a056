"""Quantised keys and values: ggml's 32-element blocks, as they lie in a tile.

A block is written through addresses, so that one encoder serves both places it can lie in:

values   a GGUF block: d, (m), (high bits), codes one after the other
keys     16 positions side by side: codes ``[n][16]``, (high bits u32 [16]), d f16 [16], (m f16 [16])

Decoded values are f32: ``(code - offset) * d``, or ``code * d + m`` fused, or ``N16[code] * d``.
"""

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels import codebooks
from runtime.kernels.emit import I8, I32, const, load_ir, splat_ir
from runtime.kernels.simd import (
    LANES,
    VB,
    f32v,
    fma,
    i32v,
    inline,
    ld_f16,
    ld_f32,
    ld_i32,
    ld_u8,
    load_f16,
    load_i32,
    load_s8_f32,
    splat_f32,
    st_f16,
    st_f32,
    st_i8,
    st_i32,
    store,
)

B = 32
HALF = B // 2
#: Code book of IQ4_NL
N16 = np.array(codebooks.N16, np.float32)


def _nibbles(shift):
    @intrinsic
    def load(typingctx, address):
        def codegen(cx, b, sig, args):
            v = load_ir(b, args[0], ir.VectorType(I8, LANES))
            v = b.lshr(v, const(v.type, shift)) if shift else v
            return b.uitofp(b.and_(v, const(v.type, 15)), f32v.llvm)

        return f32v(types.int64), codegen

    return load


load_low, load_high = _nibbles(0), _nibbles(4)  # f32 vectors of the nibbles of 16 bytes


def _sixteens(b, bits):
    one = b.and_(bits, const(i32v.llvm, 1))
    return b.uitofp(b.shl(one, const(i32v.llvm, 4)), f32v.llvm)


@intrinsic
def bit_of_lanes(typingctx, v, j):
    """16.0 in the lanes of an i32 vector whose bit j is set, else 0.0: the fifth bit of 16 positions."""

    def codegen(cx, b, sig, args):
        return _sixteens(b, b.lshr(args[0], splat_ir(b, b.trunc(args[1], I32), LANES)))

    return f32v(i32v, types.int64), codegen


@intrinsic
def bits_of_word(typingctx, word, first):
    """16.0 in lane i if bit ``first + i`` of a u32 is set, else 0.0: the fifth bit of 16 dims."""

    def codegen(cx, b, sig, args):
        lane = ir.Constant(i32v.llvm, list(range(LANES)))
        shift = b.add(lane, splat_ir(b, b.trunc(args[1], I32), LANES))
        return _sixteens(b, b.lshr(splat_ir(b, args[0], LANES), shift))

    return f32v(types.int32, types.int64), codegen


@nb.njit(**inline)
def extremes(x):
    """(smallest, largest, the one of larger magnitude) of 32 floats; the first wins a tie."""
    low = high = far = ld_f32(x)
    for i in range(1, B):
        v = ld_f32(x + 4 * i)
        low, high = min(low, v), max(high, v)
        if abs(v) > abs(far):
            far = v
    return low, high, far


@nb.njit(**inline)
def inverse(d):
    return nb.float32(1.0) / d if d != nb.float32(0.0) else nb.float32(0.0)


@nb.njit(**inline)
def encode_q8_0(x, codes, stride, d_at, m_at, h_at):
    _, _, far = extremes(x)
    d = abs(far) / nb.float32(127.0)
    scale = inverse(d)
    for i in range(B):
        st_i8(codes + i * stride, nb.int8(np.rint(ld_f32(x + 4 * i) * scale)))
    st_f16(d_at, d)


def make_encode(levels, has_min):
    """Codes of 4 or 5 bits: around a signed extreme, or from the minimum up."""
    five = levels == 32
    half = nb.float32(0.5 if has_min else levels / 2 + 0.5)
    top = levels - 1

    @nb.njit(**inline)
    def encode(x, codes, stride, d_at, m_at, h_at):
        low, high, far = extremes(x)
        base = nb.float32(0.0)
        if has_min:
            d, base = (high - low) / nb.float32(top), low
            st_f16(m_at, low)
        else:
            d = far / nb.float32(-(levels // 2))
        scale = inverse(d)
        st_f16(d_at, d)
        bits = nb.int64(0)
        for j in range(HALF):
            c0 = min(top, nb.int64((ld_f32(x + 4 * j) - base) * scale + half))
            c1 = min(top, nb.int64((ld_f32(x + 4 * (j + HALF)) - base) * scale + half))
            if five:
                bits |= (c0 >> 4) << j
                bits |= (c1 >> 4) << (j + HALF)
            st_i8(codes + j * stride, nb.int8((c0 & 15) | ((c1 & 15) << 4)))
        if five:
            st_i32(h_at, nb.int32(bits))

    return encode


@nb.njit(**inline)
def nearest_n16(v):
    """Index of the entry of N16 next to v; halfway goes up."""
    i = 0
    while i < 15 and v >= (N16[i] + N16[i + 1]) * nb.float32(0.5):
        i += 1
    return i


@nb.njit(**inline)
def encode_iq4_nl(x, codes, stride, d_at, m_at, h_at):
    """Codes from the signed extreme, then the scale that fits them best, weighted by x squared."""
    _, _, far = extremes(x)
    scale = inverse(far / N16[0])
    fit, norm = nb.float32(0.0), nb.float32(0.0)
    for j in range(HALF):
        v0, v1 = ld_f32(x + 4 * j), ld_f32(x + 4 * (j + HALF))
        c0, c1 = nearest_n16(v0 * scale), nearest_n16(v1 * scale)
        fit += v0 * v0 * N16[c0] * v0
        norm += v0 * v0 * N16[c0] * N16[c0]
        fit += v1 * v1 * N16[c1] * v1
        norm += v1 * v1 * N16[c1] * N16[c1]
        st_i8(codes + j * stride, nb.int8(c0 | (c1 << 4)))
    st_f16(d_at, fit / norm if norm > 0 else nb.float32(0.0))


def make_block(encode, code_bytes, has_min, five):
    """(put_key, put_value) of a block type over `encode`."""
    kh = code_bytes * LANES  # key block: codes, high bits, d, m
    kd = kh + (4 * LANES if five else 0)
    km = kd + 2 * LANES
    key_bytes = km + (2 * LANES if has_min else 0)
    vm = 2  # value block: d, m, high bits, codes
    vh = vm + (2 if has_min else 0)
    vc = vh + (4 if five else 0)
    value_bytes = vc + code_bytes

    @nb.njit(**inline)
    def put_key(row, tile, lane, d):
        for i in range(d // B):
            at = tile + i * key_bytes
            encode(
                row + 4 * B * i, at + lane, LANES, at + kd + 2 * lane, at + km + 2 * lane, at + kh + 4 * lane
            )

    @nb.njit(**inline)
    def put_value(row, at, d):
        for i in range(d // B):
            block = at + i * value_bytes
            encode(row + 4 * B * i, block + vc, 1, block, block + vm, block + vh)

    return put_key, put_value


@nb.njit(**inline)
def get_keys_q8_0(tile, out, d):
    for i in range(d // B):
        at = tile + i * (B + 2) * LANES
        scale = load_f16(at + B * LANES)
        for j in range(B):
            store(out + (i * B + j) * VB, load_s8_f32(at + j * LANES) * scale)


@nb.njit(**inline)
def get_values_q8_0(values, out, d):
    for i in range(TILE_ROWS * d // B):
        at = values + i * (B + 2)
        scale = splat_f32(ld_f16(at))
        store(out + 2 * VB * i, load_s8_f32(at + 2) * scale)
        store(out + 2 * VB * i + VB, load_s8_f32(at + 2 + LANES) * scale)


TILE_ROWS = 16


def make_get(levels, has_min):
    """(get_keys, get_values) of the 4 and 5 bit types."""
    five = levels == 32
    kd = HALF * LANES + (4 * LANES if five else 0)
    key_bytes = kd + (4 if has_min else 2) * LANES
    vh = 4 if has_min else 2
    vc = vh + (4 if five else 0)
    value_bytes = vc + HALF
    offset = nb.float32(0.0 if has_min else levels / 2)

    @nb.njit(**inline)
    def scaled(code, d, m):
        return fma(code, d, m) if has_min else (code - splat_f32(offset)) * d

    @nb.njit(**inline)
    def get_keys(tile, out, d):
        for i in range(d // B):
            at = tile + i * key_bytes
            scale = load_f16(at + kd)
            least = load_f16(at + kd + 2 * LANES) if has_min else scale
            high = load_i32(at + HALF * LANES)
            for j in range(HALF):
                c0, c1 = load_low(at + j * LANES), load_high(at + j * LANES)
                if five:
                    c0, c1 = c0 + bit_of_lanes(high, j), c1 + bit_of_lanes(high, j + HALF)
                store(out + (i * B + j) * VB, scaled(c0, scale, least))
                store(out + (i * B + j + HALF) * VB, scaled(c1, scale, least))

    @nb.njit(**inline)
    def get_values(values, out, d):
        for i in range(TILE_ROWS * d // B):
            at = values + i * value_bytes
            scale = splat_f32(ld_f16(at))
            least = splat_f32(ld_f16(at + 2)) if has_min else scale
            c0, c1 = load_low(at + vc), load_high(at + vc)
            if five:
                c0 = c0 + bits_of_word(ld_i32(at + vh), 0)
                c1 = c1 + bits_of_word(ld_i32(at + vh), HALF)
            store(out + 2 * VB * i, scaled(c0, scale, least))
            store(out + 2 * VB * i + VB, scaled(c1, scale, least))

    return get_keys, get_values


@nb.njit(**inline)
def get_keys_iq4_nl(tile, out, d):
    for i in range(d // B):
        at = tile + i * (HALF + 2) * LANES
        for j in range(HALF):
            for lane in range(LANES):
                code, scale = ld_u8(at + j * LANES + lane), ld_f16(at + HALF * LANES + 2 * lane)
                st_f32(out + (i * B + j) * VB + 4 * lane, N16[code & 15] * scale)
                st_f32(out + (i * B + j + HALF) * VB + 4 * lane, N16[code >> 4] * scale)


@nb.njit(**inline)
def get_values_iq4_nl(values, out, d):
    for i in range(TILE_ROWS * d // B):
        at = values + i * (HALF + 2)
        scale = ld_f16(at)
        for j in range(HALF):
            code = ld_u8(at + 2 + j)
            st_f32(out + 2 * VB * i + 4 * j, N16[code & 15] * scale)
            st_f32(out + 2 * VB * i + 4 * (j + HALF), N16[code >> 4] * scale)
