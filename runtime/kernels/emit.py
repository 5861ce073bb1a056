"""Builders of LLVM IR that the vector language is made of: constants, memory, calls, reductions."""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llb
from llvmlite import ir
from numba.core import cgutils

# numba inlines functions whose machine code exists already, and generating it has rewritten their IR: LLVM
# sinks address arithmetic next to its use as an offset from one of the summands, taken for a pointer. Once
# inlined, that summand may turn out to be the constant 0, and a load at an offset from null is undefined: the
# optimiser then deletes the whole kernel. Addresses here are integers, so they stay integers.
llb.set_option("emberd", "-addr-sink-using-gep=false")

I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()

Value = Any
Builder = Any


def const(vector: Any, value: float) -> Value:
    """All lanes equal."""
    return ir.Constant(vector, [value] * vector.count)


def with_element(vector: Any, element: Any) -> Any:
    return ir.VectorType(element, vector.count)


def splat_ir(b: Builder, scalar: Value, lanes: int) -> Value:
    vt = ir.VectorType(scalar.type, lanes)
    undefined = ir.Constant(vt, ir.Undefined)
    v = b.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return b.shuffle_vector(v, undefined, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def at_ir(b: Builder, address: Value, offset: int) -> Value:
    return b.add(address, ir.Constant(address.type, offset)) if offset else address


def load_ir(b: Builder, address: Value, llvm_type: Any) -> Value:
    return b.load(b.inttoptr(address, llvm_type.as_pointer()), align=1)


def store_ir(b: Builder, value: Value, address: Value) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=1)


def call_ir(b: Builder, name: str, result: Any, args: list[Value]) -> Value:
    """Call an LLVM intrinsic or a C symbol of the process by name."""
    fn = cgutils.get_or_insert_function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
    return b.call(fn, args)


def type_suffix(llvm_type: Any) -> str:
    """The overload suffix LLVM gives its intrinsics, such as ``v16f32``."""
    if isinstance(llvm_type, ir.VectorType):
        return f"v{llvm_type.count}{type_suffix(llvm_type.element)}"
    if isinstance(llvm_type, ir.IntType):
        return f"i{llvm_type.width}"
    return {F16: "f16", F32: "f32", F64: "f64"}[llvm_type]


def unary_ir(b: Builder, name: str, x: Value) -> Value:
    return call_ir(b, f"llvm.{name}.{type_suffix(x.type)}", x.type, [x])


def fma_ir(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """x*y + z, rounded once."""
    return call_ir(b, f"llvm.fma.{type_suffix(x.type)}", x.type, [x, y, z])


def prefetch_ir(b: Builder, address: Value) -> None:
    pointer = b.inttoptr(address, I8.as_pointer())
    read, keep_everywhere, data = (ir.Constant(I32, n) for n in (0, 3, 1))
    call_ir(b, "llvm.prefetch.p0", ir.VoidType(), [pointer, read, keep_everywhere, data])


def part_ir(b: Builder, v: Value, first: int, count: int) -> Value:
    """`count` lanes of v from `first` on."""
    lanes = ir.Constant(ir.VectorType(I32, count), list(range(first, first + count)))
    return b.shuffle_vector(v, v, lanes)


def concat_ir(b: Builder, parts: list[Value]) -> Value:
    """Vectors of one type, a power of two of them, side by side."""
    while len(parts) > 1:
        n = parts[0].type.count
        lanes = ir.Constant(ir.VectorType(I32, 2 * n), list(range(2 * n)))
        parts = [b.shuffle_vector(x, y, lanes) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def reduce_ir(b: Builder, v: Value, op: Callable[[Value, Value], Value]) -> Value:
    """Upper half onto lower half until one lane is left: an order the optimiser may not change."""
    n = v.type.count
    while n > 1:
        n //= 2
        v = op(part_ir(b, v, 0, n), part_ir(b, v, n, n))
    return b.extract_element(v, ir.Constant(I32, 0))


def bytes_ir(b: Builder, v: Value) -> Value:
    """The same bits as a vector of bytes."""
    element = v.type.element
    size = element.width // 8 if isinstance(element, ir.IntType) else 4
    return b.bitcast(v, ir.VectorType(I8, v.type.count * size))


def shift_right_ir(b: Builder, v: Value, n: int) -> Value:
    """Bytes of v shifted right as 32-bit words: bits of a neighbour come in, the caller masks them."""
    words = b.bitcast(v, ir.VectorType(I32, v.type.count // 4))
    return b.bitcast(b.lshr(words, const(words.type, n)), v.type) if n else v


def shift_left_ir(b: Builder, v: Value, n: int) -> Value:
    """As `shift_right_ir`."""
    words = b.bitcast(v, ir.VectorType(I32, v.type.count // 4))
    return b.bitcast(b.shl(words, const(words.type, n)), v.type) if n else v


def half_bits_to_float_ir(b: Builder, h: Value) -> Value:
    """f16 bits (vector of i16) -> f32 without conversion instructions; exact."""
    wide = with_element(h.type, I32)
    floats = with_element(h.type, F32)
    bits = b.zext(h, wide)
    sign = b.shl(b.and_(bits, const(wide, 0x8000)), const(wide, 16))
    rest = b.shl(b.and_(bits, const(wide, 0x7FFF)), const(wide, 13))
    finite = b.bitcast(b.fmul(b.bitcast(rest, floats), const(floats, 2.0**112)), wide)
    special = b.or_(rest, const(wide, 0x7F800000))
    is_special = b.icmp_unsigned(">=", rest, const(wide, 0x7C00 << 13))
    return b.bitcast(b.or_(sign, b.select(is_special, special, finite)), floats)


def float_to_half_bits_ir(b: Builder, x: Value) -> Value:
    """f32 -> f16 bits, to nearest even, without conversion instructions."""
    wide = with_element(x.type, I32)

    def c(value: int) -> Value:
        return const(wide, value)

    bits = b.bitcast(x, wide)
    sign = b.lshr(b.and_(bits, c(0x80000000)), c(16))
    size = b.and_(bits, c(0x7FFFFFFF))
    odd = b.and_(b.lshr(size, c(13)), c(1))
    normal = b.lshr(b.add(b.add(size, c(0xFFF - (112 << 23))), odd), c(13))
    # adding 0.5 rounds to multiples of 2^-24, the unit of f16's subnormal numbers
    tiny = b.sub(b.bitcast(b.fadd(b.bitcast(size, x.type), const(x.type, 0.5)), wide), c(0x3F000000))
    half = b.select(b.icmp_unsigned("<", size, c(0x38800000)), tiny, normal)
    half = b.select(b.icmp_unsigned(">=", size, c(0x47800000)), c(0x7C00), half)
    nan = b.or_(c(0x7E00), b.and_(b.lshr(size, c(13)), c(0x3FF)))
    half = b.select(b.icmp_unsigned(">", size, c(0x7F800000)), nan, half)
    return b.trunc(b.or_(sign, half), with_element(x.type, I16))
