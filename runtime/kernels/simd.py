"""SIMD values for numba code.

`VecType("f32", 16)` is a numba type whose value is LLVM's ``<16 x float>``, and every operation below is
an intrinsic that emits one or two instructions in place: a loop written with them compiles to the loop
one would write in C with intrinsics. All vectors have 16 lanes of 32 bits on every instruction set; where
registers are narrower LLVM splits them, and the order of operations stays.

Addresses are int64 byte addresses. Nothing here checks them: `inline` functions are trusted code.
`tiles` has the operations on several columns at once and `atomics` those between threads; this module
is the face of all of them.
"""

from typing import Any

import numba as nb
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.atomics import atomic_add, atomic_load, atomic_store, atomic_swap, cpu_pause, sched_yield
from runtime.kernels.emit import (
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    Builder,
    Value,
    bytes_ir,
    const,
    float_to_half_bits_ir,
    fma_ir,
    half_bits_to_float_ir,
    load_ir,
    prefetch_ir,
    reduce_ir,
    shift_right_ir,
    splat_ir,
    store_ir,
    unary_ir,
    with_element,
)
from runtime.kernels.isa import HAS_HALF, dot4_ir
from runtime.kernels.tiles import (
    make_tile_zero,
    make_tile_zeros,
    tile_fma_f32,
    tile_fma_i32,
    tile_fma_i32_noscale,
    tile_fma_splat,
    tile_load,
    tile_load_splat_i32,
    tile_store,
)
from runtime.kernels.vectype import (
    ELEMENTS,
    LANES,
    VB,
    VecType,
    f32v,
    i8v,
    i32v,
)

__all__ = [
    "LANES",
    "VB",
    "I",
    "VecType",
    "atomic_add",
    "atomic_load",
    "atomic_store",
    "atomic_swap",
    "bits_f32",
    "bits_i32",
    "bits_of_f64",
    "const",
    "cpu_pause",
    "dot4",
    "dot4_ir",
    "entry",
    "f16_from_bits",
    "f32_from_bits",
    "f32v",
    "f64_from_bits",
    "fma",
    "fma1",
    "fma1_f64",
    "fma_ir",
    "high_nibbles",
    "hmax",
    "hmin",
    "hsum",
    "i8v",
    "i32_to_f32",
    "i32v",
    "inline",
    "lane_index",
    "ld_bf16",
    "ld_f16",
    "ld_f32",
    "ld_f64",
    "ld_i8",
    "ld_i16",
    "ld_i32",
    "ld_i64",
    "ld_u8",
    "load_bf16",
    "load_bf16_ir",
    "load_f16",
    "load_f32",
    "load_f32_ir",
    "load_half_ir",
    "load_i8",
    "load_i32",
    "load_ir",
    "load_s8_f32",
    "load_u8_f32",
    "low_nibbles",
    "make_tile_zero",
    "make_tile_zeros",
    "prefetch",
    "round_i32",
    "sched_yield",
    "select",
    "splat_f32",
    "splat_i8",
    "splat_i32",
    "splat_ir",
    "st_bf16",
    "st_f16",
    "st_f32",
    "st_f64",
    "st_i8",
    "st_i16",
    "st_i32",
    "st_i64",
    "st_u8",
    "store",
    "store_bf16",
    "store_bf16_ir",
    "store_f16",
    "store_half_ir",
    "store_ir",
    "store_s8",
    "tile_fma_f32",
    "tile_fma_i32",
    "tile_fma_i32_noscale",
    "tile_fma_splat",
    "tile_load",
    "tile_load_splat_i32",
    "tile_store",
    "vabs",
    "vany",
    "vdiv",
    "veq",
    "vfloor",
    "vge",
    "vgt",
    "vle",
    "vlt",
    "vmax",
    "vmin",
    "vneg",
    "vsqrt",
]

I = nb.int64  # noqa: E741 - the address and size type of every kernel
#: options of helpers that disappear into their callers
inline: dict[str, Any] = {"nogil": True, "forceinline": True, "error_model": "numpy"}
#: options of functions called from Python or from several kernels
entry: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}


def load_f32_ir(b: Builder, address: Value) -> Value:
    return load_ir(b, address, f32v.llvm)


def load_half_ir(b: Builder, address: Value, lanes: int = LANES) -> Value:
    """f16 x lanes at address as f32."""
    if HAS_HALF:
        return b.fpext(load_ir(b, address, ir.VectorType(F16, lanes)), ir.VectorType(F32, lanes))
    return half_bits_to_float_ir(b, load_ir(b, address, ir.VectorType(I16, lanes)))


def store_half_ir(b: Builder, v: Value, address: Value) -> None:
    half = b.fptrunc(v, with_element(v.type, F16)) if HAS_HALF else float_to_half_bits_ir(b, v)
    store_ir(b, half, address)


def load_bf16_ir(b: Builder, address: Value, lanes: int = LANES) -> Value:
    wide = ir.VectorType(I32, lanes)
    bits = b.zext(load_ir(b, address, ir.VectorType(I16, lanes)), wide)
    return b.bitcast(b.shl(bits, const(wide, 16)), ir.VectorType(F32, lanes))


def store_bf16_ir(b: Builder, v: Value, address: Value) -> None:
    """To nearest even; a NaN stays one."""
    wide = with_element(v.type, I32)
    bits = b.bitcast(v, wide)
    odd = b.and_(b.lshr(bits, const(wide, 16)), const(wide, 1))
    rounded = b.add(bits, b.add(odd, const(wide, 0x7FFF)))
    rounded = b.select(b.fcmp_unordered("uno", v, v), b.or_(bits, const(wide, 0x400000)), rounded)
    store_ir(b, b.trunc(b.lshr(rounded, const(wide, 16)), with_element(v.type, I16)), address)


def _loader(result, emit):
    @intrinsic
    def load(typingctx, address):
        def codegen(cx, b, sig, args):
            return emit(b, args[0])

        return result(types.int64), codegen

    return load


def _storer(value_type, emit):
    @intrinsic
    def st(typingctx, address, value):
        def codegen(cx, b, sig, args):
            emit(b, args[1], args[0])
            return cx.get_dummy_value()

        return types.void(types.int64, value_type), codegen

    return st


def _one(emit_vector):
    """A loader of vectors as a loader of one scalar."""
    return lambda b, address: b.extract_element(emit_vector(b, address, 1), ir.Constant(I32, 0))


def _as_vector(emit_store):
    """A storer of vectors as a storer of one scalar."""
    return lambda b, value, address: emit_store(b, splat_ir(b, value, 1), address)


def _plain(element):
    llvm_type, numba_type = ELEMENTS[element]
    return _loader(numba_type, lambda b, address: load_ir(b, address, llvm_type)), _storer(
        numba_type, store_ir
    )


ld_i8, st_i8 = _plain("i8")
ld_u8, st_u8 = _plain("u8")
ld_i16, st_i16 = _plain("i16")
ld_i32, st_i32 = _plain("i32")
ld_i64, st_i64 = _plain("i64")
ld_f32, st_f32 = _plain("f32")
ld_f64, st_f64 = _plain("f64")
ld_f16, st_f16 = _loader(types.float32, _one(load_half_ir)), _storer(types.float32, _as_vector(store_half_ir))
ld_bf16, st_bf16 = (
    _loader(types.float32, _one(load_bf16_ir)),
    _storer(types.float32, _as_vector(store_bf16_ir)),
)

load_f32 = _loader(f32v, load_f32_ir)
load_i32 = _loader(i32v, lambda b, address: load_ir(b, address, i32v.llvm))
load_i8 = _loader(i8v, lambda b, address: load_ir(b, address, i8v.llvm))
load_f16 = _loader(f32v, load_half_ir)
load_bf16 = _loader(f32v, load_bf16_ir)


def _load_bytes(extend):
    lanes = ir.VectorType(I8, LANES)
    return lambda b, address: getattr(b, extend)(load_ir(b, address, lanes), f32v.llvm)


load_u8_f32 = _loader(f32v, _load_bytes("uitofp"))
load_s8_f32 = _loader(f32v, _load_bytes("sitofp"))
store_f16, store_bf16 = _storer(f32v, store_half_ir), _storer(f32v, store_bf16_ir)
#: i32 lanes to bytes, upper bits dropped
store_s8 = _storer(i32v, lambda b, v, address: store_ir(b, b.trunc(v, with_element(v.type, I8)), address))


@intrinsic
def store(typingctx, address, v):
    def codegen(cx, b, sig, args):
        store_ir(b, args[1], args[0])
        return cx.get_dummy_value()

    return types.void(types.int64, v), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line; any address is allowed."""

    def codegen(cx, b, sig, args):
        prefetch_ir(b, args[0])
        return cx.get_dummy_value()

    return types.void(types.int64), codegen


def _splatter(vt):
    @intrinsic
    def splat(typingctx, x):
        def codegen(cx, b, sig, args):
            return splat_ir(b, args[0], vt.lanes)

        return vt(vt.scalar), codegen

    return splat


splat_f32, splat_i32, splat_i8 = _splatter(f32v), _splatter(i32v), _splatter(i8v)


def _map(emit):
    """An operation on vectors of one type that gives the same type."""

    @intrinsic
    def unary(typingctx, x):
        def codegen(cx, b, sig, args):
            return emit(b, args[0])

        return x(x), codegen

    return unary


vabs = _map(lambda b, x: unary_ir(b, "fabs", x))
vfloor = _map(lambda b, x: unary_ir(b, "floor", x))
vsqrt = _map(lambda b, x: unary_ir(b, "sqrt", x))
low_nibbles = _map(lambda b, x: b.and_(x, const(x.type, 15)))
high_nibbles = _map(lambda b, x: b.and_(shift_right_ir(b, x, 4), const(x.type, 15)))


@intrinsic
def vneg(typingctx, x):
    def codegen(cx, b, sig, args):
        return b.fneg(args[0]) if x.is_float else b.neg(args[0])

    return x(x), codegen


def _map2(emit):
    @intrinsic
    def binary(typingctx, x, y):
        def codegen(cx, b, sig, args):
            return emit(b, *args)

        return x(x, x), codegen

    return binary


def _larger(b: Builder, x: Value, y: Value) -> Value:
    """y where either is not a number."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _smaller(b: Builder, x: Value, y: Value) -> Value:
    return b.select(b.fcmp_ordered("<", x, y), x, y)


vmax, vmin = _map2(_larger), _map2(_smaller)
vdiv = _map2(lambda b, x, y: b.fdiv(x, y))


def _comparer(operation):
    @intrinsic
    def compare(typingctx, x, y):
        """A mask for `select`: all bits of an i32 lane set where it holds."""

        def codegen(cx, b, sig, args):
            test = b.fcmp_ordered if x.is_float else b.icmp_signed
            return b.sext(test(operation, *args), i32v.llvm)

        return i32v(x, x), codegen

    return compare


vlt, vle, vgt, vge, veq = map(_comparer, ("<", "<=", ">", ">=", "=="))


@intrinsic
def select(typingctx, mask, x, y):
    """x in lanes where the mask is set, y elsewhere."""

    def codegen(cx, b, sig, args):
        return b.select(b.icmp_signed("!=", args[0], const(args[0].type, 0)), args[1], args[2])

    return x(mask, x, x), codegen


@intrinsic
def vany(typingctx, mask):
    """Whether the mask is set in any lane."""

    def codegen(cx, b, sig, args):
        lanes = b.icmp_signed("!=", args[0], const(args[0].type, 0))
        return b.icmp_signed("!=", b.bitcast(lanes, I16), I16(0))

    return types.boolean(mask), codegen


@intrinsic
def lane_index(typingctx):
    """0, 1, ... 15 as i32."""

    def codegen(cx, b, sig, args):
        return ir.Constant(i32v.llvm, list(range(LANES)))

    return i32v(), codegen


@intrinsic
def i32_to_f32(typingctx, v):
    def codegen(cx, b, sig, args):
        return b.sitofp(args[0], f32v.llvm)

    return f32v(v), codegen


@intrinsic
def round_i32(typingctx, v):
    """f32 -> i32, to nearest even."""

    def codegen(cx, b, sig, args):
        return b.fptosi(unary_ir(b, "rint", args[0]), i32v.llvm)

    return i32v(v), codegen


@intrinsic
def bits_i32(typingctx, v):
    def codegen(cx, b, sig, args):
        return b.bitcast(args[0], i32v.llvm)

    return i32v(v), codegen


@intrinsic
def bits_f32(typingctx, v):
    def codegen(cx, b, sig, args):
        return b.bitcast(args[0], f32v.llvm)

    return f32v(v), codegen


@intrinsic
def fma(typingctx, x, y, z):
    """x*y + z, rounded once."""

    def codegen(cx, b, sig, args):
        return fma_ir(b, *args)

    return x(x, x, x), codegen


def _scalar_fma(numba_type):
    @intrinsic
    def scalar_fma(typingctx, x, y, z):
        def codegen(cx, b, sig, args):
            return fma_ir(b, *args)

        return numba_type(numba_type, numba_type, numba_type), codegen

    return scalar_fma


fma1, fma1_f64 = _scalar_fma(types.float32), _scalar_fma(types.float64)


@intrinsic
def bits_of_f64(typingctx, x):
    def codegen(cx, b, sig, args):
        return b.bitcast(args[0], I64)

    return types.int64(types.float64), codegen


@intrinsic
def f64_from_bits(typingctx, bits):
    def codegen(cx, b, sig, args):
        return b.bitcast(args[0], F64)

    return types.float64(types.int64), codegen


@intrinsic
def f16_from_bits(typingctx, bits):
    """The IEEE half whose bits are the lowest 16 of an int64, as float32."""

    def codegen(cx, b, sig, args):
        half = half_bits_to_float_ir(b, splat_ir(b, b.trunc(args[0], I16), 1))
        return b.extract_element(half, I32(0))

    return types.float32(types.int64), codegen


@intrinsic
def f32_from_bits(typingctx, bits):
    """The float32 whose bits are the lower half of an int64, as ops get their float parameters."""

    def codegen(cx, b, sig, args):
        return b.bitcast(b.trunc(args[0], I32), F32)

    return types.float32(types.int64), codegen


@intrinsic
def dot4(typingctx, acc, codes, x):
    """acc[i] += codes[4i..4i+3] . x[4i..4i+3], codes u8 in 0..127 and x s8; exact (see `isa`)."""

    def codegen(cx, b, sig, args):
        return dot4_ir(b, args[0], bytes_ir(b, args[1]), bytes_ir(b, args[2]))

    return acc(acc, codes, x), codegen


@intrinsic
def hsum(typingctx, v):
    def codegen(cx, b, sig, args):
        return reduce_ir(b, args[0], b.fadd if v.is_float else b.add)

    return v.scalar(v), codegen


@intrinsic
def hmin(typingctx, v):
    def codegen(cx, b, sig, args):
        test = b.fcmp_ordered if v.is_float else b.icmp_signed
        return reduce_ir(b, args[0], lambda x, y: b.select(test("<", x, y), x, y))

    return v.scalar(v), codegen


@intrinsic
def hmax(typingctx, v):
    def codegen(cx, b, sig, args):
        return reduce_ir(b, args[0], lambda x, y: _larger(b, x, y))

    return v.scalar(v), codegen
