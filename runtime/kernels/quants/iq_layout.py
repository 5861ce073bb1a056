"""What the IQ1, IQ2 and IQ3 types share: grid entries with signs or an offset."""

import numba as nb

from runtime.kernels.simd import inline


@nb.njit(**inline)
def with_parity(signs):
    """Eight signs from seven: the last makes their number even."""
    odd = signs ^ (signs >> 4)
    odd ^= odd >> 2
    odd ^= odd >> 1
    return signs | (odd & 1) << 7


@nb.njit(**inline)
def put_signed(put, grid, size, index, signs, dst, row, column, scale):
    """`size` values of a grid entry, negative where their bit of `signs` is set."""
    for j in range(size):
        value = nb.int64(grid[index * size + j])
        put(dst, row, column + j, -value if signs >> j & 1 else value, scale)


@nb.njit(**inline)
def put_eighths(put, grid, index, delta, dst, row, column, scale):
    """8 values of a grid entry in eighths, each off by one."""
    for j in range(8):
        put(dst, row, column + j, 8 * nb.int64(grid[index * 8 + j]) + delta, scale)
