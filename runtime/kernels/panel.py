"""Drivers that all weight formats share: panels times column tiles, the single-column stream, the matmul op.

A format gives ``step(nc, ahead)``, which makes ``step(acc, w, x)``: one block of one panel times nc columns,
the same operations for every nc. Each output is one lane with one fixed sequence of operations over k, so
neither tile widths nor the split over threads can change a bit.
"""

import numba as nb

from runtime.kernels.quantise import MID, WIDE, WIDTHS, block_bytes, tile_width
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


def make_quad(step, block, w_bytes, x_bytes):
    """quad(w, apart, x, k, out, out_apart): one column times 4 panels that lie `apart` bytes from each other.

    Four weight streams reach 95 % of the memory's read limit, one plain stream 56 %.
    """
    zero = make_tile_zero(f32v, 1)
    step_1 = step(1, True)

    @nb.njit(**inline)
    def quad(w, apart, x, k, out, out_apart):
        a, b, c, d = zero(), zero(), zero(), zero()
        for _ in range((k + block - 1) // block):
            a = step_1(a, w, x)
            b = step_1(b, w + apart, x)
            c = step_1(c, w + 2 * apart, x)
            d = step_1(d, w + 3 * apart, x)
            w += w_bytes
            x += x_bytes
        tile_store(a, out, 0)
        tile_store(b, out + out_apart, 0)
        tile_store(c, out + 2 * out_apart, 0)
        tile_store(d, out + 3 * out_apart, 0)

    return quad


def make_kernels(step, block, w_bytes, kind):
    """(quad, wide, mid, one) of a format with blocks of `block` k in `w_bytes` and activations of `kind`."""
    x_bytes = block_bytes(kind)
    panels = (make_panel(step, block, w_bytes, x_bytes, nc) for nc in WIDTHS)
    return make_quad(step, block, w_bytes, x_bytes), *panels


@nb.njit(**inline)
def _times_column(quad, one, panel_bytes, w, p0, p1, x, k, out):
    """Panels [p0, p1) times one column: quarters of the range side by side, then the rest."""
    n = (p1 - p0) // 4
    for p in range(p0, p0 + n):
        quad(w + p * panel_bytes, n * panel_bytes, x, k, out + VB * p, n * VB)
    for p in range(p0 + 4 * n, p1):
        one(w + p * panel_bytes, x, k, out + VB * p, 0)


@nb.njit(**inline)
def _times_columns(wide, mid, one, panel_bytes, x_bytes, w, p0, p1, x, k, j0, j1, m, out, ldo):
    """Panels [p0, p1) times columns [j0, j1) of m."""
    for p in range(p0, p1):
        wp = w + p * panel_bytes
        j = j0
        while j < j1:
            nc = tile_width(j, m)
            xj, oj = x + j * x_bytes, out + VB * p + j * ldo
            if nc == WIDE:
                wide(wp, xj, k, oj, ldo)
            elif nc == MID:
                mid(wp, xj, k, oj, ldo)
            else:
                one(wp, xj, k, oj, ldo)
            j += nc


@nb.njit(**inline)
def _add_rows(residual, out, p0, p1, m, ld):
    for j in range(m):
        for i in range(j * ld + p0 * VB, j * ld + p1 * VB, VB):
            store(residual + i, load_f32(residual + i) + load_f32(out + i))


@nb.njit(**inline)
def run_matmul(quad, wide, mid, one, block, w_bytes, x_bytes, a, job, nth, ctl):
    """The matmul op of a format; parameters on the tape as `matmul.MATMUL` documents."""
    w, n_panels, x, k = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3)
    out, ldo, residual = arg(a, 4), arg(a, 5), arg(a, 6)
    m = variable(job, arg(a, 7))
    n_blocks = (k + block - 1) // block
    panel_bytes, column_bytes = n_blocks * w_bytes, n_blocks * x_bytes
    if m == 1:
        chunk = max(4, n_panels // (8 * nth) // 4 * 4)
    else:
        chunk = max(1, min(n_panels // (4 * nth), _PANELS_AT_ONCE))
    columns = max(WIDE, _COLUMN_CACHE // column_bytes // WIDE * WIDE)
    while True:
        p0 = grab(ctl, nth, chunk)
        if p0 >= n_panels:
            break
        p1 = min(n_panels, p0 + chunk)
        if m == 1:
            _times_column(quad, one, panel_bytes, w, p0, p1, x, k, out)
        else:
            for j in range(0, m, columns):
                j1 = min(m, j + columns)
                _times_columns(wide, mid, one, panel_bytes, column_bytes, w, p0, p1, x, k, j, j1, m, out, ldo)
        if residual != 0:
            _add_rows(residual, out, p0, p1, m, ldo)
