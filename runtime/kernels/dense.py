"""Step and packer of float weights: f32 multiply-adds in order of k, 16 rows at a time."""

import numba as nb

from runtime.kernels.blocks import make_dense, make_stream
from runtime.kernels.quantise import DENSE_BLOCK
from runtime.kernels.simd import LANES, inline, ld_i16, ld_i32, st_i16, st_i32


def dense_step(load, size):
    """Elements of `size` bytes, widened to f32 by the emitter `load`."""
    dense = make_dense(load, LANES * size, DENSE_BLOCK)

    def step(nc, ahead):
        stream = make_stream(DENSE_BLOCK * LANES * size if ahead else 0)

        @nb.njit(**inline)
        def step_nc(acc, w, x):
            stream(w)
            return dense(acc, w, x)

        return step_nc

    return step


@nb.njit(**inline)
def run_pack_dense(size, src, n_rows, k, dst, p0, p1):
    """As `rowwise.run_pack`, for elements of 2 or 4 bytes and any k."""
    padded = (k + DENSE_BLOCK - 1) // DENSE_BLOCK * DENSE_BLOCK
    panel_bytes = padded * LANES * size
    for p in range(p0, p1):
        at = dst + p * panel_bytes
        rows = min(LANES, n_rows - LANES * p)
        if rows < LANES or padded != k:
            for i in range(0, panel_bytes, 4):
                st_i32(at + i, nb.int32(0))
        for first in range(0, k, DENSE_BLOCK):
            last = min(k, first + DENSE_BLOCK)
            for r in range(rows):
                row = src + (LANES * p + r) * k * size
                for i in range(first, last):
                    if size == 4:
                        st_i32(at + (i * LANES + r) * 4, ld_i32(row + 4 * i))
                    else:
                        st_i16(at + (i * LANES + r) * 2, ld_i16(row + 2 * i))
