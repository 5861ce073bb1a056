"""Moving codes of GGUF blocks four at a time, as the bytes of a 32-bit word held in an int64."""

import numba as nb

from runtime.kernels.simd import VB, inline, ld_i16, ld_i32, ld_u8, st_f32, st_i8, st_i16, st_i32


@nb.njit(**inline)
def word_at(src):
    return nb.int64(ld_i32(src)) & 0xFFFFFFFF


@nb.njit(**inline)
def field(word, shift, mask):
    """Of each of the four bytes, the bits at `shift` under `mask`, moved to the bottom."""
    return (word >> shift) & (mask * 0x01010101)


@nb.njit(**inline)
def put_word(dst, v, row, word):
    """Four codes of one row into vector v of the panel block at dst."""
    st_i32(dst + VB * v + 4 * row, nb.int32(word))


@nb.njit(**inline)
def put_half(dst, row, src):
    """A row's f16 at src among the 16 at dst."""
    st_i16(dst + 2 * row, ld_i16(src))


@nb.njit(**inline)
def put_byte(dst, row, value):
    """A row's byte among the 16 at dst."""
    st_i8(dst + row, nb.int8(value))


@nb.njit(**inline)
def bit_plane_word(bits):
    """32 bits, one per column, as a panel keeps them: byte t holds the bits of columns 4v + t at bit v."""
    word = nb.int64(0)
    for v in range(8):
        four = (bits >> (4 * v)) & 15
        word |= ((four * 0x00204081) & 0x01010101) << v
    return word


@nb.njit(**inline)
def decode_nibbles(q, dst, d, zero, m):
    """32 weights d*(c - zero) + m from 16 bytes: columns 0..15 are low nibbles, 16..31 high.

    For no minimum m is -0.0: adding it keeps the sign of zeros.
    """
    for j in range(16):
        c = nb.int64(ld_u8(q + j))
        st_f32(dst + 4 * j, d * nb.float32((c & 15) - zero) + m)
        st_f32(dst + 4 * (16 + j), d * nb.float32((c >> 4) - zero) + m)


@nb.njit(**inline)
def decode_nibbles_and_bits(q, bits, dst, d, zero, m):
    """As `decode_nibbles`, with fifth bits numbered by column."""
    for j in range(16):
        c = nb.int64(ld_u8(q + j))
        low, high = (c & 15) | (((bits >> j) & 1) << 4), (c >> 4) | (((bits >> (16 + j)) & 1) << 4)
        st_f32(dst + 4 * j, d * nb.float32(low - zero) + m)
        st_f32(dst + 4 * (16 + j), d * nb.float32(high - zero) + m)


@nb.njit(**inline)
def decode_codebook(q, dst, d, codebook):
    """32 weights d*codebook[c] from 16 bytes of nibbles as in `decode_nibbles`."""
    for j in range(16):
        c = nb.int64(ld_u8(q + j))
        st_f32(dst + 4 * j, d * nb.float32(codebook[c & 15]))
        st_f32(dst + 4 * (16 + j), d * nb.float32(codebook[c >> 4]))
