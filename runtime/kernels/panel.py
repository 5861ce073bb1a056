"""Drivers that all weight formats share: panels times column tiles, the single-column stream, the matmul op.

A format gives ``step(nc, ahead)``, which makes ``step(acc, w, x)``: one block of one panel times nc columns,
the same operations for every nc. Each output is one lane with one fixed sequence of operations over k, so
neither tile widths nor the split over threads can change a bit.

Bounds, and what one Zen 4 core reached of them:

    one column      the weights' bytes, read once: 22 to 31 GB/s from memory, two cores all that it gives
    many columns    one dot4 per 64 multiply-adds: 154 to 176 GMAC/s, as much at k = 8192 (column blocks);
                    floats 55 GMAC/s, the rate of multiply-add
"""

import numba as nb

from runtime.kernels.isa import PREFETCHES
from runtime.kernels.quantise import A_F32, MID, WIDE, block_bytes, tile_width
from runtime.kernels.simd import VB, f32v, inline, load_f32, store
from runtime.kernels.tape import arg, variable
from runtime.kernels.tiles import make_tile_zero, tile_store
from runtime.team import grab

#: bytes of activations that a group of panels is multiplied with before it moves on: they stay in L2
_COLUMN_CACHE = 256 << 10
_PANELS_AT_ONCE = 4


def make_panel(step, block, w_bytes, x_bytes, nc):
    """panel(w, x, k, out, ldo): f32 ``out[j * ldo + 4 * row]`` of 16 rows times nc columns."""
    zero = make_tile_zero(f32v, nc)
    step_nc, x_step = step(nc, False), x_bytes * nc

    @nb.njit(**inline)
    def panel(w, x, k, out, ldo):
        acc = zero()
        for _ in range((k + block - 1) // block):
            acc = step_nc(acc, w, x)
            w += w_bytes
            x += x_step
        tile_store(acc, out, ldo)

    return panel


def make_quads(step, block, w_bytes, x_bytes):
    """few(w, panel_bytes, column_bytes, p0, p1, x, k, j0, j1, out, ldo): panels [p0, p1) times columns
    [j0, j1) one by one, four quarters of the panels side by side: four streams of weights.

    From the second column on the four panels are in L2. Where quarters are uneven the last panel is repeated.
    """
    zero = make_tile_zero(f32v, 1)
    step_1 = step(1, True)

    @nb.njit(**inline)
    def quad(w0, w1, w2, w3, x, k, out0, out1, out2, out3):
        a, b, c, d = zero(), zero(), zero(), zero()
        for i in range((k + block - 1) // block):
            at = i * w_bytes
            a = step_1(a, w0 + at, x)
            b = step_1(b, w1 + at, x)
            c = step_1(c, w2 + at, x)
            d = step_1(d, w3 + at, x)
            x += x_bytes
        tile_store(a, out0, 0)
        tile_store(b, out1, 0)
        tile_store(c, out2, 0)
        tile_store(d, out3, 0)

    @nb.njit(**inline)
    def few(w, panel_bytes, column_bytes, p0, p1, x, k, j0, j1, out, ldo):
        n, last = (p1 - p0 + 3) // 4, p1 - 1
        for p in range(p0, p0 + n):
            q, r, s = min(p + n, last), min(p + 2 * n, last), min(p + 3 * n, last)
            for j in range(j0, j1):
                o = out + j * ldo
                quad(
                    w + p * panel_bytes,
                    w + q * panel_bytes,
                    w + r * panel_bytes,
                    w + s * panel_bytes,
                    x + j * column_bytes,
                    k,
                    o + VB * p,
                    o + VB * q,
                    o + VB * r,
                    o + VB * s,
                )

    return few


def make_lines(step, block, w_bytes, x_bytes):
    """few(...) as `make_quads` has it, but one panel after the other: the weights are one plain stream."""
    panel = make_panel(step, block, w_bytes, x_bytes, 1)

    @nb.njit(**inline)
    def few(w, panel_bytes, column_bytes, p0, p1, x, k, j0, j1, out, ldo):
        for p in range(p0, p1):
            for j in range(j0, j1):
                panel(w + p * panel_bytes, x + j * column_bytes, k, out + j * ldo + VB * p, 0)

    return few


def make_kernels(step, block, w_bytes, kind):
    """(few, wide, mid) of a format with blocks of `block` k in `w_bytes` and activations of `kind`.

    Floats always go four panels side by side: one alone waits for its own multiply-adds.
    """
    x_bytes = block_bytes(kind)
    wide, mid = (make_panel(step, block, w_bytes, x_bytes, nc) for nc in (WIDE, MID))
    make_few = make_quads if PREFETCHES or kind == A_F32 else make_lines
    return make_few(step, block, w_bytes, x_bytes), wide, mid


@nb.njit(**inline)
def _times_many(wide, mid, panel_bytes, x_bytes, w, p0, p1, x, k, j0, j1, m, out, ldo):
    """Panels [p0, p1) times the tiles of more than one column among [j0, j1) of m; returns where they end."""
    end = j0
    for p in range(p0, p1):
        j = j0
        while j < j1 and tile_width(j, m) > 1:
            xj, oj = x + j * x_bytes, out + VB * p + j * ldo
            if tile_width(j, m) == WIDE:
                wide(w + p * panel_bytes, xj, k, oj, ldo)
                j += WIDE
            else:
                mid(w + p * panel_bytes, xj, k, oj, ldo)
                j += MID
        end = j
    return end


@nb.njit(**inline)
def _add_rows(residual, out, p0, p1, m, ld):
    for j in range(m):
        for i in range(j * ld + p0 * VB, j * ld + p1 * VB, VB):
            store(residual + i, load_f32(residual + i) + load_f32(out + i))


@nb.njit(**inline)
def run_matmul(few, wide, mid, block, w_bytes, x_bytes, a, job, nth, ctl):
    """The matmul op of a format; parameters on the tape as `matmul.MATMUL` documents."""
    w, n_panels, x, k = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3)
    out, ldo, residual = arg(a, 4), arg(a, 5), arg(a, 6)
    m = variable(job, arg(a, 7))
    n_blocks = (k + block - 1) // block
    panel_bytes, column_bytes = n_blocks * w_bytes, n_blocks * x_bytes
    if m < MID:
        chunk = max(_PANELS_AT_ONCE, n_panels // (8 * nth) // _PANELS_AT_ONCE * _PANELS_AT_ONCE)
    else:
        chunk = max(1, min(n_panels // (4 * nth), _PANELS_AT_ONCE))
    columns = max(WIDE, _COLUMN_CACHE // column_bytes // WIDE * WIDE)
    while True:
        p0 = grab(ctl, nth, chunk)
        if p0 >= n_panels:
            break
        p1 = min(n_panels, p0 + chunk)
        for j0 in range(0, m, columns):
            j1 = min(m, j0 + columns)
            j = _times_many(wide, mid, panel_bytes, column_bytes, w, p0, p1, x, k, j0, j1, m, out, ldo)
            few(w, panel_bytes, column_bytes, p0, p1, x, k, j, j1, out, ldo)
        if residual != 0:
            _add_rows(residual, out, p0, p1, m, ldo)
