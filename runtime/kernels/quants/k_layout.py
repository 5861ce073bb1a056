"""What the 256-weight types share: their packed scales, and how codes become bit planes of a panel."""

import numba as nb

from runtime.kernels.simd import inline, ld_u8
from runtime.kernels.words import field, put_word, word_at


@nb.njit(**inline)
def scale_and_minimum(s, k):
    """The 6-bit pair of sub-block k = 0..7 from the 12 bytes at s (Q4_K, Q5_K)."""
    if k < 4:
        return nb.int64(ld_u8(s + k)) & 63, nb.int64(ld_u8(s + k + 4)) & 63
    both = nb.int64(ld_u8(s + k + 4))
    scale = (both & 15) | ((nb.int64(ld_u8(s + k - 4)) >> 6) << 4)
    return scale, (both >> 4) | ((nb.int64(ld_u8(s + k)) >> 6) << 4)


@nb.njit(**inline)
def scale_q3(s, k):
    """The 6-bit scale of sub-block k = 0..15 from the 12 bytes at s, less 32 (Q3_K)."""
    low = nb.int64(ld_u8(s + k % 8)) >> (4 * (k // 8)) & 15
    return (low | ((nb.int64(ld_u8(s + 8 + k % 4)) >> (2 * (k // 4)) & 3) << 4)) - 32


@nb.njit(**inline)
def put_nibble_plane(dst, row, src, shift):
    """Vectors 0..3: the nibbles at `shift` of the 32 bytes at src."""
    for v in range(4):
        low, high = field(word_at(src + 4 * v), shift, 15), field(word_at(src + 16 + 4 * v), shift, 15)
        put_word(dst, v, row, low | (high << 4))


@nb.njit(**inline)
def put_pair_plane(dst, v, row, src, shift):
    """Vectors v, v + 1: the bit pairs at `shift` of the 32 bytes at src."""
    for h in range(2):
        word = nb.int64(0)
        for i in range(4):
            word |= field(word_at(src + 16 * h + 4 * i), shift, 3) << (2 * i)
        put_word(dst, v + h, row, word)


@nb.njit(**inline)
def put_bit_plane(dst, v, row, src, shift):
    """Vector v: the bits at `shift` of the 32 bytes at src."""
    word = nb.int64(0)
    for i in range(8):
        word |= field(word_at(src + 4 * i), shift, 1) << i
    put_word(dst, v, row, word)
