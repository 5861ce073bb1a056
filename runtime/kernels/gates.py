"""Gates on what attention and recurrences give, fused with the quantiser of the matmul that follows."""

import numba as nb

from runtime.kernels.job import ROWS
from runtime.kernels.norms import rms_scale
from runtime.kernels.quantise import quantise
from runtime.kernels.simd import VB, inline, ld_f32, ld_i64, load_f32, store
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.kernels.vecmath import vgelu, vsigmoid, vsilu
from runtime.team import grab

SIGMOID, SILU, GELU, PLAIN = range(4)


@nb.njit(**inline)
def opened(gate, function):
    """function(gate); `PLAIN` leaves it as it is."""
    if function == SIGMOID:
        return vsigmoid(gate)
    if function == SILU:
        return vsilu(gate)
    return vgelu(gate) if function == GELU else gate


@Op
def part_heads(a, job, ith, nth, ctl):
    """(x, ldx, heads, D): heads of a row that lie as q0 g0 q1 g1 ... become g0 g1 ... q0 q1 ..., in place"""
    x, ldx, heads, d, rows = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), variable(job, ROWS)
    tmp = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        row = x + j * ldx
        for i in range(0, 8 * heads * d, VB):
            store(tmp + i, load_f32(row + i))
        for h in range(heads):
            at, gate = tmp + 8 * d * h, row + 4 * d * h
            for i in range(0, 4 * d, VB):
                store(gate + i, load_f32(at + 4 * d + i))
                store(gate + 4 * d * heads + i, load_f32(at + i))


@Op
def gate_quant(a, job, ith, nth, ctl):
    """(x, ldx, n, gate, ldg, function, dst, activation kind): dst = quantise(x * function(gate))

    With ldg = 0 all rows get one gate.
    """
    x, ldx, n, gate, ldg, function = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5)
    dst, kind, rows, tmp = (
        arg(a, 6),
        arg(a, 7),
        variable(job, ROWS),
        ld_i64(job + JOB_SCRATCH) + ith * SCRATCH,
    )
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        for i in range(0, 4 * n, VB):
            store(tmp + i, load_f32(x + j * ldx + i) * opened(load_f32(gate + j * ldg + i), function))
        quantise(tmp - j * 4 * n, 4 * n, j, j + 1, rows, n, dst, kind)


@Op
def norm_gate_quant(a, job, ith, nth, ctl):
    """(x, ldx, heads, D, weight, eps f32, gate, ldg, function, dst, activation kind)

    dst = quantise(rms_norm(x) * function(gate)), the norm of each head with one weight [D] for all.
    """
    x, ldx, heads, d, w, eps = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), ld_f32(a + 8 * 5)
    gate, ldg, function, dst, kind = arg(a, 6), arg(a, 7), arg(a, 8), arg(a, 9), arg(a, 10)
    rows, tmp, n = variable(job, ROWS), ld_i64(job + JOB_SCRATCH) + ith * SCRATCH, heads * d
    while True:
        j = grab(ctl, nth, 1)
        if j >= rows:
            break
        for h in range(heads):
            at, gate_at = x + j * ldx + 4 * d * h, gate + j * ldg + 4 * d * h
            r = rms_scale(at, d, eps)
            for i in range(0, 4 * d, VB):
                v = load_f32(at + i) * r * load_f32(w + i)
                store(tmp + 4 * d * h + i, v * opened(load_f32(gate_at + i), function))
        quantise(tmp - j * 4 * n, 4 * n, j, j + 1, rows, n, dst, kind)
