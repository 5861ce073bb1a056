"""Arithmetic on vectors and bits on scalars: one or two instructions each, emitted in place.

Part of the vector language whose face is `simd`.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import (
    F32,
    F64,
    I16,
    I32,
    I64,
    Builder,
    Value,
    bytes_ir,
    const,
    fma_ir,
    half_bits_to_float_ir,
    reduce_ir,
    shift_right_ir,
    splat_ir,
    unary_ir,
)
from runtime.kernels.isa import dot4_ir
from runtime.kernels.vectype import LANES, f32v, i8v, i32v


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


def _butterfly(half):
    @intrinsic
    def butterfly(typingctx, v):
        """Of lanes `half` apart the sum in the lower one, the difference in the upper one."""

        def codegen(cx, b, sig, args):
            x, lanes = args[0], range(LANES)
            other = b.shuffle_vector(x, x, ir.Constant(ir.VectorType(I32, LANES), [i ^ half for i in lanes]))
            upper = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [bool(i & half) for i in lanes])
            return b.select(upper, b.fsub(other, x), b.fadd(x, other))

        return v(v), codegen

    return butterfly


butterfly1, butterfly2, butterfly4, butterfly8 = map(_butterfly, (1, 2, 4, 8))


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
