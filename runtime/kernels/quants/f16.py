"""F16: IEEE half, widened to f32 on the way.

panel block    16 k, each 16 rows of 2 bytes; the last block of a row is filled up with zeros
"""

import numba as nb

from runtime.kernels.dense import dense_step, run_pack_dense
from runtime.kernels.panel import make_kernels, run_matmul
from runtime.kernels.quantise import A_F32, DENSE_BLOCK, block_bytes
from runtime.kernels.rowwise import run_decode, run_embed
from runtime.kernels.simd import LANES, entry, inline, ld_f16, load_half_ir, st_f32
from runtime.kernels.tape import Op

BLOCK, BLOCK_BYTES = 1, 2
PANEL_BLOCK = DENSE_BLOCK * LANES * BLOCK_BYTES
ACTIVATIONS = A_F32
ACT_BLOCK = block_bytes(ACTIVATIONS)
step = dense_step(load_half_ir, BLOCK_BYTES)


@nb.njit(**inline)
def decode_block(src, dst):
    st_f32(dst, ld_f16(src))


few, wide, mid = make_kernels(step, DENSE_BLOCK, PANEL_BLOCK, ACTIVATIONS)


@Op
def matmul(a, job, ith, nth, ctl):
    run_matmul(few, wide, mid, DENSE_BLOCK, PANEL_BLOCK, ACT_BLOCK, a, job, nth, ctl)


@Op
def embed(a, job, ith, nth, ctl):
    run_embed(decode_block, BLOCK, BLOCK_BYTES, a, job, nth, ctl)


@nb.njit(**entry)
def pack(src, n_rows, k, dst, p0, p1):
    run_pack_dense(BLOCK_BYTES, src, n_rows, k, dst, p0, p1)


@nb.njit(**entry)
def decode(src, n_rows, k, dst):
    run_decode(decode_block, BLOCK, BLOCK_BYTES, src, n_rows, k, dst)
