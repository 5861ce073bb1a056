"""Transcendental functions of vectors, and sine and cosine of one double.

Our own polynomials in fused multiply-adds: every function is one fixed sequence of operations, so that
each instruction set gives the same bits, which no libm promises.
"""

import numba as nb
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import F64, I32, Builder, Value, call_ir, const, fma_ir, unary_ir, with_element
from runtime.kernels.simd import (
    bits_of_f64,
    f64_from_bits,
    fma,
    fma1_f64,
    inline,
    select,
    splat_f32,
    vabs,
    vdiv,
    vlt,
    vmax,
    vneg,
)
from runtime.kernels.tiles import items_ir, tile_ir

__all__ = [
    "log_f64",
    "sincos",
    "tile_exp",
    "vdiv",
    "vexp",
    "vgelu",
    "vsigmoid",
    "vsilu",
    "vsoftplus",
    "vtanh",
]

_LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has 9 bits, so that n times it is exact (Cephes expf)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_MIN, _EXP_MAX = -87.0, 88.0


def _exp_ir(b: Builder, v: Value) -> Value:
    ft = v.type
    it = with_element(ft, I32)

    def c(x: float) -> Value:
        return const(ft, x)

    below = b.fcmp_ordered("<", v, c(_EXP_MIN))
    x = b.select(below, c(_EXP_MIN), v)
    x = b.select(b.fcmp_ordered(">", x, c(_EXP_MAX)), c(_EXP_MAX), x)
    n = unary_ir(b, "rint", b.fmul(x, c(_LOG2_E)))
    r = fma_ir(b, n, c(-_LN2_LOW), fma_ir(b, n, c(-_LN2_HIGH), x))
    p = c(_EXP[0])
    for k in _EXP[1:]:
        p = fma_ir(b, p, r, c(k))
    p = fma_ir(b, p, b.fmul(r, r), b.fadd(r, c(1.0)))
    exponent = b.shl(b.fptosi(n, it), const(it, 23))
    y = b.bitcast(b.add(b.bitcast(p, it), exponent), ft)
    return b.select(below, c(0.0), y)


@intrinsic
def vexp(typingctx, v):
    """exp of f32 lanes to 2e-7 relative; exactly 0 below -87, exp(88) above 88."""

    def codegen(cx, b, sig, args):
        return _exp_ir(b, args[0])

    return v(v), codegen


@intrinsic
def tile_exp(typingctx, tile):
    """`vexp` of each vector of a tile."""

    def codegen(cx, b, sig, args):
        return tile_ir(b, [_exp_ir(b, item) for item in items_ir(b, args[0])])

    return tile(tile), codegen


@nb.njit(**inline)
def vsigmoid(x):
    """1 / (1 + exp(-x))"""
    one = splat_f32(nb.float32(1.0))
    return vdiv(one, one + vexp(vneg(x)))


@nb.njit(**inline)
def vsilu(x):
    """x / (1 + exp(-x))"""
    return vdiv(x, splat_f32(nb.float32(1.0)) + vexp(vneg(x)))


@nb.njit(**inline)
def vtanh(x):
    """tanh: Cephes' polynomial below 0.625, 1 - 2 / (exp(2|x|) + 1) above."""
    one, two = splat_f32(nb.float32(1.0)), splat_f32(nb.float32(2.0))
    z = x * x
    p = splat_f32(nb.float32(-5.70498872745e-3))
    p = fma(p, z, splat_f32(nb.float32(2.06390887954e-2)))
    p = fma(p, z, splat_f32(nb.float32(-5.37397155531e-2)))
    p = fma(p, z, splat_f32(nb.float32(1.33314422036e-1)))
    p = fma(p, z, splat_f32(nb.float32(-3.33332819422e-1)))
    small = fma(p * z, x, x)
    size = vabs(x)
    large = one - vdiv(two, vexp(size + size) + one)
    large = select(vlt(x, splat_f32(nb.float32(0.0))), vneg(large), large)
    return select(vlt(size, splat_f32(nb.float32(0.625))), small, large)


@nb.njit(**inline)
def vsoftplus(x):
    """log(1 + exp(x)) to 3e-7 relative, as max(x, 0) + log(1 + u) with u = exp(-|x|).

    ``log(1 + u) = 2 atanh(s)``, s = u / (2 + u) <= 1/3: its series up to s^17.
    """
    u = vexp(vneg(vabs(x)))
    s = vdiv(u, splat_f32(nb.float32(2.0)) + u)
    z = s * s
    p = splat_f32(nb.float32(2 / 17))
    p = fma(p, z, splat_f32(nb.float32(2 / 15)))
    p = fma(p, z, splat_f32(nb.float32(2 / 13)))
    p = fma(p, z, splat_f32(nb.float32(2 / 11)))
    p = fma(p, z, splat_f32(nb.float32(2 / 9)))
    p = fma(p, z, splat_f32(nb.float32(2 / 7)))
    p = fma(p, z, splat_f32(nb.float32(2 / 5)))
    p = fma(p, z, splat_f32(nb.float32(2 / 3)))
    p = fma(p, z, splat_f32(nb.float32(2.0)))
    return fma(p, s, vmax(x, splat_f32(nb.float32(0.0))))


_GELU_LINEAR = -2 * 0.7978845608028654
_GELU_CUBIC = _GELU_LINEAR * 0.044715


@nb.njit(**inline)
def vgelu(x):
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as x / (1 + exp(-2 ...)), which is the same."""
    inner = x * fma(x * x, splat_f32(nb.float32(_GELU_CUBIC)), splat_f32(nb.float32(_GELU_LINEAR)))
    return vdiv(x, splat_f32(nb.float32(1.0)) + vexp(inner))


_LN2_HIGH_F64, _LN2_LOW_F64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_LOG = (
    1.479819860511658591e-01,
    1.531383769920937332e-01,
    1.818357216161805012e-01,
    2.222219843214978396e-01,
    2.857142874366239149e-01,
    3.999999999940941908e-01,
    6.666666666666735130e-01,
)


@nb.njit(**inline)
def log_f64(x):
    """Natural logarithm of a positive, normal, finite double to 1 ulp (fdlibm's reduction and polynomial)."""
    bits = bits_of_f64(x)
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    f = f64_from_bits(bits - (exponent << 52)) - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = _LOG[0]
    for i in range(1, 7):
        p = fma1_f64(p, z, _LOG[i])
    half = 0.5 * f * f
    e = nb.float64(exponent)
    return fma1_f64(e, _LN2_HIGH_F64, fma1_f64(e, _LN2_LOW_F64, s * fma1_f64(p, z, half)) - half + f)


# pi/2 as a sum of doubles (fdlibm); n * _PIO2_1 is exact in a fused multiply-add after cancellation
_TWO_OVER_PI = 0.63661977236758134308
_PIO2_1, _PIO2_2 = 1.5707963267948966, 6.123233995736766e-17
_SIN = (
    1.58969099521155010221e-10,
    -2.50507602534068634195e-08,
    2.75573137070700676789e-06,
    -1.98412698298579493134e-04,
    8.33333333332248946124e-03,
    -1.66666666666666324348e-01,
)
_COS = (
    -1.13596475577881948265e-11,
    2.08757232129817482790e-09,
    -2.75573143513906633035e-07,
    2.48015872894767294178e-05,
    -1.38888888888741095749e-03,
    4.16666666666666019037e-02,
)


@intrinsic
def _rint_f64(typingctx, x):
    def codegen(cx, b, sig, args):
        return call_ir(b, "llvm.rint.f64", F64, [args[0]])

    return types.float64(types.float64), codegen


@nb.njit(**inline)
def sincos(angle):
    """(sin, cos) of a float64 angle in radians to about 1e-16 + |angle| * 1e-33, for |angle| < 1e6."""
    n = _rint_f64(angle * _TWO_OVER_PI)
    r = fma1_f64(-n, _PIO2_2, fma1_f64(-n, _PIO2_1, angle))
    z = r * r
    p, q = _SIN[0], _COS[0]
    for i in range(1, 6):
        p = fma1_f64(p, z, _SIN[i])
        q = fma1_f64(q, z, _COS[i])
    s = fma1_f64(p * z, r, r)
    c = fma1_f64(q * z, z, fma1_f64(nb.float64(-0.5), z, nb.float64(1.0)))
    quadrant = int(n) & 3
    if quadrant & 1:
        s, c = c, s
    if quadrant & 2:
        s = -s
    if (quadrant + 1) & 2:
        c = -c
    return s, c
