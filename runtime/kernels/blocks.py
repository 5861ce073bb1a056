"""Dot products of one block of a weight panel with a tile of activation columns.

A panel is 16 consecutive rows of weights. One vector of 64 bytes holds 4 consecutive k of each row: byte
4*r + t is (row r, k0 + t). That is `dot4`'s operand, so results come out one row per lane, scales are plain
vectors, and nothing is ever summed across lanes.

A decoder is a generator that runs while code is generated: it emits loads and bit operations and yields
(k offset, vector of codes). A weight format is a decoder, a `step` for one block, and a packer.

Bit planes of a block of 32 k, group v being k 4v..4v+3:

    nibbles    4 vectors; v: group v in the low, group 4 + v in the high nibbles
    pairs      2 vectors; h: group 4h + i in bits 2i, 2i + 1
    bits       1 vector; group v in bit v
"""

from collections.abc import Callable, Iterator

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import (
    F32,
    I8,
    I32,
    Builder,
    Value,
    at_ir,
    bytes_ir,
    const,
    fma_ir,
    load_ir,
    prefetch_ir,
    shift_left_ir,
    shift_right_ir,
    splat_ir,
)
from runtime.kernels.isa import ISA, PREFETCHES, dot4_ir, lookup16_ir
from runtime.kernels.simd import VB, f32v, i8v, tile_load_splat_i32
from runtime.kernels.tiles import items_ir, tile_ir

Decoder = Callable[[Builder, Value], Iterator[tuple[int, Value]]]
CODES = i8v.llvm
PREFETCH_AHEAD = 4096  # bytes; the next panel follows, so running past the end of one is right


def _vector(b: Builder, w: Value, i: int) -> Value:
    return load_ir(b, at_ir(b, w, VB * i), CODES)


def _mask(b: Builder, v: Value, bits: int) -> Value:
    return b.and_(v, const(CODES, bits))


def _moved(b: Builder, v: Value, source: int, target: int, mask: int) -> Value:
    """Bits at `source` of every byte moved to `target`, others cleared."""
    moved = shift_left_ir(b, v, target - source) if target > source else shift_right_ir(b, v, source - target)
    return _mask(b, moved, mask << target)


def _nibble(b: Builder, v: Value, high: int) -> Value:
    return _moved(b, v, 4 * high, 0, 15)


def nibbles(b: Builder, w: Value) -> Iterator[tuple[int, Value]]:
    """4 bits: 4 vectors per 32 k."""
    for v in range(4):
        c = _vector(b, w, v)
        yield 4 * v, _nibble(b, c, 0)
        yield 16 + 4 * v, _nibble(b, c, 1)


def nibbles_and_bits(b: Builder, w: Value) -> Iterator[tuple[int, Value]]:
    """5 bits: 4 vectors of nibbles, 1 of fifth bits per 32 k."""
    top = _vector(b, w, 4)
    for v in range(4):
        c = _vector(b, w, v)
        for high in (0, 1):
            yield 16 * high + 4 * v, b.or_(_nibble(b, c, high), _moved(b, top, 4 * high + v, 4, 1))


def nibbles_and_pairs(half: int) -> Decoder:
    """6 bits, half a block: 4 vectors of nibbles, 2 of top pairs per 32 k."""

    def decode(b: Builder, w: Value) -> Iterator[tuple[int, Value]]:
        top = _vector(b, w, 4 + half)
        for v in range(4):
            c = _vector(b, w, v)
            yield 16 * half + 4 * v, b.or_(_nibble(b, c, half), _moved(b, top, 2 * v, 4, 3))

    return decode


def pairs(half: int) -> Decoder:
    """2 bits, half a block: 2 vectors per 32 k."""

    def decode(b: Builder, w: Value) -> Iterator[tuple[int, Value]]:
        c = _vector(b, w, half)
        for v in range(4):
            yield 16 * half + 4 * v, _moved(b, c, 2 * v, 0, 3)

    return decode


def pairs_and_bits(half: int) -> Decoder:
    """3 bits, half a block: 2 vectors of pairs, 1 of third bits per 32 k."""

    def decode(b: Builder, w: Value) -> Iterator[tuple[int, Value]]:
        c, top = _vector(b, w, half), _vector(b, w, 2)
        for v in range(4):
            yield 16 * half + 4 * v, b.or_(_moved(b, c, 2 * v, 0, 3), _moved(b, top, 4 * half + v, 2, 1))

    return decode


def whole_bytes(b: Builder, w: Value) -> Iterator[tuple[int, Value]]:
    """8 bits: 8 vectors per 32 k."""
    for v in range(8):
        yield 4 * v, _vector(b, w, v)


def half_bytes(half: int) -> Decoder:
    """8 bits, half a block: vectors 4*half..4*half+3 of 8 per 32 k."""

    def decode(b: Builder, w: Value) -> Iterator[tuple[int, Value]]:
        for v in range(4 * half, 4 * half + 4):
            yield 4 * v, _vector(b, w, v)

    return decode


def looked_up(codebook: tuple[int, ...]) -> Decoder:
    """4 bits that number 16 values of int8; yields value + 128."""
    table = [value + 128 for value in codebook]

    def decode(b: Builder, w: Value) -> Iterator[tuple[int, Value]]:
        for k, codes in nibbles(b, w):
            yield k, lookup16_ir(b, table, codes)

    return decode


def make_dot(decode: Decoder, biased: bool = False):
    """dot(acc, w, x): acc[j] += codes at w . x[j], for columns of 32 bytes at x + 32*j."""

    @intrinsic
    def dot(typingctx, acc, w, x):
        def codegen(cx, b, sig, args):
            sums = items_ir(b, args[0])
            for k, codes in decode(b, args[1]):
                for j, total in enumerate(sums):
                    four = load_ir(b, at_ir(b, args[2], 32 * j + k), I32)
                    column = bytes_ir(b, splat_ir(b, four, acc.dtype.lanes))
                    sums[j] = dot4_ir(b, total, codes, column, biased)
            return tile_ir(b, sums)

        return acc(acc, types.int64, types.int64), codegen

    return dot


@intrinsic
def _unchanged(typingctx, zero, address, stride):
    def codegen(cx, b, sig, args):
        return args[0]

    return zero(zero, types.int64, types.int64), codegen


#: where the sums of `biased` dot products start: -128 * sum(x), or zero where weights are multiplied signed
biased_start = tile_load_splat_i32 if ISA.biased_start else _unchanged


def make_stream(n_bytes: int):
    """stream(w): prefetch `n_bytes`, some way ahead in a weight stream that is read once, where that pays."""

    @intrinsic
    def stream(typingctx, w):
        def codegen(cx, b, sig, args):
            for offset in range(0, n_bytes if PREFETCHES else 0, 64):
                prefetch_ir(b, at_ir(b, args[0], PREFETCH_AHEAD + offset))
            return cx.get_dummy_value()

        return types.void(types.int64), codegen

    return stream


def make_dense(load, size: int, block: int):
    """dense(acc, w, x): acc[j] += sum of w[k] * x[j][k] in order of k, for float columns of `block` at x.

    `load(b, address)` emits 16 rows' weights of one k as f32, `size` bytes apart.
    """

    @intrinsic
    def dense(typingctx, acc, w, x):
        def codegen(cx, b, sig, args):
            sums = items_ir(b, args[0])
            for k in range(block):
                weights = load(b, at_ir(b, args[1], size * k))
                for j, total in enumerate(sums):
                    one = load_ir(b, at_ir(b, args[2], 4 * (block * j + k)), F32)
                    sums[j] = fma_ir(b, weights, splat_ir(b, one, f32v.lanes), total)
            return tile_ir(b, sums)

        return acc(acc, types.int64, types.int64), codegen

    return dense


@intrinsic
def load_low4_f32(typingctx, address):
    """16 low nibbles as f32."""

    def codegen(cx, b, sig, args):
        v = load_ir(b, args[0], ir.VectorType(I8, 16))
        return b.uitofp(b.and_(v, const(v.type, 15)), f32v.llvm)

    return f32v(types.int64), codegen


@intrinsic
def load_high4_f32(typingctx, address):
    """16 high nibbles as f32."""

    def codegen(cx, b, sig, args):
        v = load_ir(b, args[0], ir.VectorType(I8, 16))
        return b.uitofp(b.lshr(v, const(v.type, 4)), f32v.llvm)

    return f32v(types.int64), codegen
