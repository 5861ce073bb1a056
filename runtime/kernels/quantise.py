"""Activations: f32 rows quantised into the column tiles that matmul kernels read.

A tile holds the next 8, 4 or 1 columns (`WIDTHS` of the instruction set), so that a kernel needs one
pointer and constant offsets. Per block of 32 or 256 k, for NC columns:

    q[block/32][NC][32] i8    round(x / d)
    d[NC] f32                 max|x| / 127
    s[block/group][NC]        per group of 32 or 16 k, one of
                                  f32  d * sum(q)          for formats with a minimum
                                  i32  -zero * sum(q)      for formats with a zero point: where sums start

A column takes the same bytes in every tile width, so the tile that starts at column j starts at byte
``j * act_bytes(kind, k)``. What is in the tiles depends on the row alone, never on its neighbours.
"""

import numba as nb

from runtime.kernels.isa import ISA
from runtime.kernels.simd import (
    LANES,
    VB,
    entry,
    hmax,
    hsum,
    inline,
    ld_f32,
    load_f32,
    round_i32,
    splat_f32,
    st_f32,
    st_i32,
    store,
    store_s8,
    vabs,
    vmax,
)

#: widths of column tiles, widest first; the last is 1
WIDTHS = ISA.widths
WIDE, MID = WIDTHS[0], WIDTHS[1]

_ZERO_MASK, _FLOAT_SUMS, _GROUP_16, _BLOCK_256, _PLAIN = 0xFF, 0x100, 0x200, 0x400, 0x800

# activation kinds: bit fields, named by block, sum type and zero point (and the group where it is 16 of 32)
A_F32 = _PLAIN  # floats as they are, in blocks of 16 k: x[NC][16]
A32_FSUM = _FLOAT_SUMS
A32_ISUM8 = 8
A32_ISUM16 = 16
A32_ISUM128 = 128
A32_ISUM64_16 = _GROUP_16 | 64
A256_FSUM = _BLOCK_256 | _FLOAT_SUMS
A256_FSUM_16 = _BLOCK_256 | _GROUP_16 | _FLOAT_SUMS
A256_ISUM4 = _BLOCK_256 | _GROUP_16 | 4
A256_ISUM32 = _BLOCK_256 | _GROUP_16 | 32
A256_ISUM128 = _BLOCK_256 | 128

DENSE_BLOCK = 16


def block_bytes(kind: int) -> int:
    """Bytes per column and block of activations."""
    if kind & _PLAIN:
        return 4 * DENSE_BLOCK
    block = 256 if kind & _BLOCK_256 else 32
    return block + 4 + 4 * (block // (16 if kind & _GROUP_16 else 32))


def block_size(kind: int) -> int:
    """k per block of activations."""
    if kind & _PLAIN:
        return DENSE_BLOCK
    return 256 if kind & _BLOCK_256 else 32


_block_bytes, _block_size = nb.njit(**inline)(block_bytes), nb.njit(**inline)(block_size)


def act_bytes(kind: int, k: int) -> int:
    """Bytes of one column of k activations of `kind`."""
    return -(-k // block_size(kind)) * block_bytes(kind)


@nb.njit(**inline)
def column_bytes(kind, k):
    """`act_bytes` for kernels."""
    size = _block_size(kind)
    return (k + size - 1) // size * _block_bytes(kind)


@nb.njit(**inline)
def tile_width(j, m):
    """Columns of the tile that starts at column j of m."""
    left = m - j
    return WIDE if left >= WIDE else MID if left >= MID else 1


@nb.njit(**inline)
def _largest(x, n):
    top = splat_f32(nb.float32(0.0))
    for i in range(0, 4 * n, VB):
        top = vmax(vabs(load_f32(x + i)), top)
    return hmax(top)


@nb.njit(**inline)
def _codes(x, inverse, q):
    """16 floats -> int8 codes; returns their sum."""
    c = round_i32(load_f32(x) * inverse)
    store_s8(q, c)
    return hsum(c)


@nb.njit(**inline)
def _put_sum(at, total, d, kind):
    if kind & _FLOAT_SUMS:
        st_f32(at, d * nb.float32(total))
    else:
        st_i32(at, -(kind & _ZERO_MASK) * total)


@nb.njit(**inline)
def _quantise_column(x, record, nc, c, k, kind):
    """One row of k floats -> column c of the tile at record."""
    block = _block_size(kind)
    for _ in range(k // block):
        d = _largest(x, block) * nb.float32(1.0 / 127.0)
        # below the smallest normal number 1/d may be infinite; such a block counts as zeros
        inverse = splat_f32(nb.float32(1.0) / d if d > nb.float32(1.2e-38) else nb.float32(0.0))
        st_f32(record + block * nc + 4 * c, d)
        at = record + (block + 4) * nc + 4 * c
        for b in range(0, block, 32):
            q = record + b * nc + 32 * c
            first = _codes(x, inverse, q)
            second = _codes(x + VB, inverse, q + LANES)
            if kind & _GROUP_16:
                _put_sum(at, first, d, kind)
                at += 4 * nc
                _put_sum(at, second, d, kind)
            else:
                _put_sum(at, first + second, d, kind)
            at += 4 * nc
            x += 2 * VB
        record += _block_bytes(kind) * nc


@nb.njit(**inline)
def _copy_column(x, record, nc, c, k):
    """Floats as they are; the last block is filled up with zeros."""
    at = record + VB * c
    for _ in range(k // DENSE_BLOCK):
        store(at, load_f32(x))
        x += VB
        at += VB * nc
    left = k % DENSE_BLOCK
    if left:
        store(at, splat_f32(nb.float32(0.0)))
        for i in range(0, 4 * left, 4):
            st_f32(at + i, ld_f32(x + i))


@nb.njit(**entry)
def quantise(src, lds, j0, j1, m, k, dst, kind):
    """Rows [j0, j1) of m, k floats each at ``src + j * lds``, into the column tiles at dst.

    k is a multiple of the kind's block, but for A_F32.
    """
    n_bytes = column_bytes(kind, k)
    first = j0 // WIDE * WIDE
    while first < j1:
        nc = tile_width(first, m)
        for c in range(max(j0 - first, 0), min(j1 - first, nc)):
            x, record = src + (first + c) * lds, dst + first * n_bytes
            if kind & _PLAIN:
                _copy_column(x, record, nc, c, k)
            else:
                _quantise_column(x, record, nc, c, k, kind)
        first += nc
