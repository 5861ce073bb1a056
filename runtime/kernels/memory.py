"""Loads and stores at byte addresses: `ld_`/`st_` of one element, `load_`/`store` of 16 lanes.

Halves and bfloats are f32 once loaded, and rounded to nearest even when stored.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import (
    F16,
    F32,
    I8,
    I16,
    I32,
    Builder,
    Value,
    const,
    float_to_half_bits_ir,
    half_bits_to_float_ir,
    load_ir,
    prefetch_ir,
    splat_ir,
    store_ir,
    with_element,
)
from runtime.kernels.isa import HAS_HALF
from runtime.kernels.vectype import ELEMENTS, LANES, f32v, i8v, i32v


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
    load = _loader(numba_type, lambda b, address: load_ir(b, address, llvm_type))
    return load, _storer(numba_type, store_ir)


ld_i8, st_i8 = _plain("i8")
ld_u8, st_u8 = _plain("u8")
ld_i16, st_i16 = _plain("i16")
ld_i32, st_i32 = _plain("i32")
ld_i64, st_i64 = _plain("i64")
ld_f32, st_f32 = _plain("f32")
ld_f64, st_f64 = _plain("f64")
ld_f16, st_f16 = _loader(types.float32, _one(load_half_ir)), _storer(types.float32, _as_vector(store_half_ir))
ld_bf16 = _loader(types.float32, _one(load_bf16_ir))
st_bf16 = _storer(types.float32, _as_vector(store_bf16_ir))

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
