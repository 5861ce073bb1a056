"""The nonlinear part of an MLP, fused with the quantiser of the matmul that follows.

A row holds what the gate and up matrices gave, `up` bytes apart; activations without a gate read the first
part only. `limit` is for those that clamp.
"""

import numba as nb

from runtime.kernels.quantise import quantise
from runtime.kernels.simd import (
    VB,
    fma,
    inline,
    ld_f32,
    ld_i64,
    load_f32,
    splat_f32,
    store,
    vdiv,
    vmax,
    vmin,
    vneg,
)
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.kernels.vecmath import vexp, vgelu, vsigmoid, vsilu, vtanh
from runtime.team import grab

(
    SILU_GATE,  # silu(gate) * up
    GELU_GATE,  # gelu(gate) * up, the tanh form of GELU
    SILU_GATE_CAPPED,  # min(silu(gate), limit) * clamp(up, -limit, limit)
    SIGMOID_GATE_CAPPED,  # g * sigmoid(1.702 g) * (clamp(up, -limit, limit) + 1), g = min(gate, limit)
    GELU,  # gelu(x)
    RELU_SQUARED,  # max(x, 0)^2
    SILU_GATE_CLAMPED,  # silu(min(gate, limit)) * clamp(up, -limit, limit)
    TANH,  # tanh(x)
    SIGMOID,  # 1 / (1 + exp(-x))
) = range(9)

_STEEPNESS = 1.702


@nb.njit(**inline)
def _clamp(v, limit):
    return vmin(vmax(v, vneg(limit)), limit)


@nb.njit(**inline)
def activate(kind, limit, gate, up, n, out):
    """f32 [n] at `gate` and `up` -> f32 [n] at `out`."""
    top, one = splat_f32(limit), splat_f32(nb.float32(1.0))
    if kind == SILU_GATE:
        for i in range(0, 4 * n, VB):
            store(out + i, vsilu(load_f32(gate + i)) * load_f32(up + i))
    elif kind == GELU_GATE:
        for i in range(0, 4 * n, VB):
            store(out + i, vgelu(load_f32(gate + i)) * load_f32(up + i))
    elif kind == SILU_GATE_CAPPED:
        for i in range(0, 4 * n, VB):
            store(out + i, vmin(vsilu(load_f32(gate + i)), top) * _clamp(load_f32(up + i), top))
    elif kind == SILU_GATE_CLAMPED:
        for i in range(0, 4 * n, VB):
            store(out + i, vsilu(vmin(load_f32(gate + i), top)) * _clamp(load_f32(up + i), top))
    elif kind == SIGMOID_GATE_CAPPED:
        for i in range(0, 4 * n, VB):
            g = vmin(load_f32(gate + i), top)
            open_part = vdiv(g, one + vexp(g * splat_f32(nb.float32(-_STEEPNESS))))
            store(out + i, fma(open_part, _clamp(load_f32(up + i), top), open_part))
    elif kind == GELU:
        for i in range(0, 4 * n, VB):
            store(out + i, vgelu(load_f32(gate + i)))
    elif kind == TANH:
        for i in range(0, 4 * n, VB):
            store(out + i, vtanh(load_f32(gate + i)))
    elif kind == SIGMOID:
        for i in range(0, 4 * n, VB):
            store(out + i, vsigmoid(load_f32(gate + i)))
    else:
        for i in range(0, 4 * n, VB):
            v = vmax(load_f32(gate + i), splat_f32(nb.float32(0.0)))
            store(out + i, v * v)


@Op
def activate_quant(a, job, ith, nth, ctl):
    """(x, ldx, up, n, activation, limit f32, dst, activation kind, rows): dst = quantise(activate(x, up))"""
    x, ldx, up, n, kind, limit = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), ld_f32(a + 8 * 5)
    dst, act_kind, rows = arg(a, 6), arg(a, 7), variable(job, arg(a, 8))
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        gate = x + j * ldx
        activate(kind, limit, gate, gate + up, n, tmp)
        quantise(tmp - j * 4 * n, 4 * n, j, j + 1, rows, n, dst, act_kind)
