"""TQ1_0: 256 ternary weights, five base-3 digits a byte, most significant first: w = d*(digit - 1).

GGUF block, 54 bytes    48 + 4 bytes of digits | d f16. Digit n of byte b is ((b * 3^n mod 256) * 3) >> 8;
                        order: n, then byte, over bytes 0..31; 32..47; and, with 4 digits, 48..51

Multiplied as panels of `scaled` codes.
"""

import numba as nb

from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.rowwise import run_decode, run_embed, run_pack
from runtime.kernels.scaled import (
    ACT_BLOCK,
    ACTIVATIONS,
    PANEL_BLOCK,
    PANEL_K,
    panel_put,
    panel_put_scale,
    row_put,
    row_put_scale,
    step,
)
from runtime.kernels.simd import entry, inline, ld_f16, ld_u8
from runtime.kernels.tape import Op

BLOCK, BLOCK_BYTES = 256, 54


@nb.njit(**inline)
def put_digits(put, src, first, count, n_digits, column, d, dst, row):
    """`n_digits` digits of each of `count` bytes into the columns from `column` on."""
    for i in range(count):
        b = nb.int64(ld_u8(src + first + i))
        for n in range(n_digits):
            put(dst, row, column + n * count + i, ((b * 3) >> 8) - 1, d)
            b = b * 3 & 255


@nb.njit(**inline)
def unpack(put, put_scale, src, dst, row):
    d = ld_f16(src + 52)
    put_digits(put, src, 0, 32, 5, 0, d, dst, row)
    put_digits(put, src, 32, 16, 5, 160, d, dst, row)
    put_digits(put, src, 48, 4, 4, 240, d, dst, row)
    for j in range(0, BLOCK, 16):
        put_scale(dst, row, j, d)


@nb.njit(**inline)
def pack_block(src, dst, row):
    unpack(panel_put, panel_put_scale, src, dst, row)


@nb.njit(**inline)
def decode_block(src, dst):
    unpack(row_put, row_put_scale, src, dst, 0)


few, wide, mid = make_kernels(step, PANEL_K, PANEL_BLOCK, ACTIVATIONS)


@Op
def matmul(a, job, ith, nth, ctl):
    run_matmul(few, wide, mid, PANEL_K, PANEL_BLOCK, ACT_BLOCK, a, job, nth, ctl)


@Op
def embed(a, job, ith, nth, ctl):
    run_embed(decode_block, BLOCK, BLOCK_BYTES, a, job, nth, ctl)


@nb.njit(**entry)
def pack(src, n_rows, k, dst, p0, p1):
    run_pack(pack_block, BLOCK, BLOCK_BYTES, BLOCK // PANEL_K * PANEL_BLOCK, src, n_rows, k, dst, p0, p1)


@nb.njit(**entry)
def decode(src, n_rows, k, dst):
    run_decode(decode_block, BLOCK, BLOCK_BYTES, src, n_rows, k, dst)
