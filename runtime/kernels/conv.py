"""Causal depthwise convolution: each channel of a row with its own taps over the rows before it.

    out[t] = after[t] * f(bias + sum_j weight[j] * in[t - taps + 1 + j]),  in[t] = before[t] * x[t]

f is SiLU or nothing; `before`, `after` and `bias` may be missing. What comes before a run's first row are the
last ``taps - 1`` inputs of the sequence, which are its state: f32 [taps - 1][channels], oldest first.

Inputs stay where they are, so rows are independent and handed out in any order. Sums go from the oldest tap
to the newest. Channels are a multiple of 16.
"""

import numba as nb

from runtime.kernels.job import (
    ROW_RUN,
    ROWS,
    RUN_AFTER,
    RUN_BEFORE,
    RUN_LENGTH,
    RUN_ROW,
    RUN_TABLE,
    RUN_WORDS,
)
from runtime.kernels.simd import LANES, VB, fma, inline, ld_i64, load_f32, splat_f32, store
from runtime.kernels.tape import Op, arg, variable
from runtime.kernels.vecmath import vsilu
from runtime.team import grab

_PART = 4 * 32 * LANES  # bytes of a row's channels that are one item of work


@nb.njit(**inline)
def _input(x, before, i):
    v = load_f32(x + i)
    if before != 0:
        v = v * load_f32(x + before + i)
    return v


@nb.njit(**inline)
def _convolve(a, row, t, state, first, end):
    """Channels at bytes [first, end) of a row that is the t-th of its run, whose state is at `state`."""
    ldx, before, after = arg(a, 1), arg(a, 2), arg(a, 3)
    ld, taps, w, bias, silu = 4 * arg(a, 4), arg(a, 5), arg(a, 6), arg(a, 7), arg(a, 8)
    x, out = arg(a, 0) + row * ldx, arg(a, 9) + row * arg(a, 10)
    stored = max(nb.int64(0), taps - 1 - t)
    for i in range(first, end, VB):
        v = splat_f32(nb.float32(0.0))
        if bias != 0:
            v = load_f32(bias + i)
        for j in range(stored):
            v = fma(load_f32(state + (t + j) * ld + i), load_f32(w + j * ld + i), v)
        for j in range(stored, taps):
            v = fma(_input(x - (taps - 1 - j) * ldx, before, i), load_f32(w + j * ld + i), v)
        if silu:
            v = vsilu(v)
        if after != 0:
            v = v * load_f32(x + after + i)
        store(out + i, v)


@nb.njit(**inline)
def _remember(a, row, t, before_step, after_step, first, end):
    """The state after a run whose last row this is, the t-th."""
    ldx, before = arg(a, 1), arg(a, 2)
    ld, taps = 4 * arg(a, 4), arg(a, 5)
    x = arg(a, 0) + row * ldx
    for j in range(taps - 1):
        back = taps - 2 - j
        for i in range(first, end, VB):
            if back > t:
                v = load_f32(before_step + (j + t + 1) * ld + i)
            else:
                v = _input(x - back * ldx, before, i)
            store(after_step + j * ld + i, v)


@Op
def conv(a, job, ith, nth, ctl):
    """(x, ldx, before, after, channels, taps, weight [taps][channels], bias, silu, out, ldo, state)

    `before` and `after` are distances in bytes from x's columns to those of their factors, 0 for none;
    `state` is the state's offset. x and out are different columns.
    """
    n_bytes, state = 4 * arg(a, 4), arg(a, 11)
    rows, row_run, run_table = variable(job, ROWS), variable(job, ROW_RUN), variable(job, RUN_TABLE)
    parts = (n_bytes + _PART - 1) // _PART
    chunk = max(nb.int64(1), min(nb.int64(4), rows * parts // (4 * nth)))
    while True:
        item = grab(ctl, nth, chunk)
        if item >= rows * parts:
            break
        for each in range(item, min(rows * parts, item + chunk)):
            row, first = each % rows, each // rows * _PART
            end = min(n_bytes, first + _PART)
            run = run_table + ld_i64(row_run + 8 * row) * 8 * RUN_WORDS
            t = row - ld_i64(run + 8 * RUN_ROW)
            before_step, after_step = (
                ld_i64(run + 8 * RUN_BEFORE) + state,
                ld_i64(run + 8 * RUN_AFTER) + state,
            )
            _convolve(a, row, t, before_step, first, end)
            if t == ld_i64(run + 8 * RUN_LENGTH) - 1:
                _remember(a, row, t, before_step, after_step, first, end)
