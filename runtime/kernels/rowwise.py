"""Drivers that all weight formats share: packing rows into panels, and decoding rows to f32.

A format gives two functions of one row's block at `src` (GGUF bytes):

    pack_block(src, dst, row)    write what belongs to row 0..15 into the panel block at dst
    decode_block(src, dst)       write the block's weights as f32, in the format's own order of operations
"""

import numba as nb

from runtime.kernels.simd import (
    LANES,
    f32_from_bits,
    inline,
    ld_f32,
    ld_i32,
    load_f32,
    splat_f32,
    st_f32,
    st_i32,
    store,
)
from runtime.kernels.tape import arg, variable
from runtime.team import grab


@nb.njit(**inline)
def run_pack(pack_block, block, block_bytes, panel_block, src, n_rows, k, dst, p0, p1):
    """Panels [p0, p1) from n_rows rows of k weights. Rows past the end are all zero bytes: zero scales."""
    n_blocks = k // block
    row_bytes = n_blocks * block_bytes
    for p in range(p0, p1):
        at = dst + p * n_blocks * panel_block
        rows = min(LANES, n_rows - LANES * p)
        if rows < LANES:
            for i in range(0, n_blocks * panel_block, 4):
                st_i32(at + i, 0)
        for i in range(n_blocks):
            block_at = src + LANES * p * row_bytes + i * block_bytes
            for r in range(rows):
                pack_block(block_at + r * row_bytes, at, r)
            at += panel_block


@nb.njit(**inline)
def decode_row(decode_block, block, block_bytes, src, k, dst):
    for _ in range(k // block):
        decode_block(src, dst)
        src += block_bytes
        dst += 4 * block


@nb.njit(**inline)
def run_decode(decode_block, block, block_bytes, src, n_rows, k, dst):
    """n_rows consecutive rows of k weights -> f32 [n_rows, k]."""
    for r in range(n_rows):
        decode_row(decode_block, block, block_bytes, src + r * (k // block * block_bytes), k, dst + 4 * k * r)


@nb.njit(**inline)
def run_embed(decode_block, block, block_bytes, a, job, nth, ctl):
    """The embedding op of a format; parameters on the tape as `dequant.EMBED` documents."""
    table, row_bytes, k, ids = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3)
    out, ldo, scale, m = arg(a, 4), arg(a, 5), f32_from_bits(arg(a, 6)), variable(job, arg(a, 7))
    while True:
        j = grab(ctl, nth, 1)
        if j >= m:
            break
        row = out + j * ldo
        decode_row(decode_block, block, block_bytes, table + ld_i32(ids + 4 * j) * row_bytes, k, row)
        whole = k // LANES * LANES
        for i in range(0, 4 * whole, 4 * LANES):
            store(row + i, load_f32(row + i) * splat_f32(scale))
        for i in range(4 * whole, 4 * k, 4):
            st_f32(row + i, ld_f32(row + i) * scale)
