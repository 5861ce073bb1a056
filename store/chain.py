"""Names of prefixes: a chain of hashes over blocks of 256 positions.

    root     H(0x00 | fingerprint id)
    block i  H(0x01 | id of block i-1, or the root | u32 positions | elements of the block)
    tail     H(0x02 | id of the last full block, or the root | u32 positions | elements of the rest)
    point    H(0x03 | likewise), where the rest may be empty

H is unkeyed blake2b-256 with a `person`, so ids are the same on every machine and exports are portable. A
salt is part of the fingerprint, hence of the root: prefixes of different roots never meet.

Every position is one element. A token is its id as u32le. The id 0xFFFFFFFF is reserved: it will introduce a
media position (u8 kind, u32le offset, 32-byte content digest), so no token may have it.
"""

from hashlib import blake2b
from itertools import pairwise

import numpy as np
import numpy.typing as npt

BLOCK = 256
ELEMENT_BYTES = 4
MEDIA_MARK = 0xFFFFFFFF
ID_BYTES = 32
_PERSON = b"kvchain1"

Tokens = npt.NDArray[np.integer]


def encode_tokens(tokens: Tokens) -> bytes:
    """Elements of `tokens` (integers [n]); ValueError when one is negative or the reserved id."""
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise ValueError(f"tokens must be one-dimensional, not of shape {array.shape}")
    if array.size and (int(array.min()) < 0 or int(array.max()) >= MEDIA_MARK):
        raise ValueError("a token id must be between 0 and 0xFFFFFFFE")
    return array.astype("<u4").tobytes()


def decode_tokens(elements: bytes) -> npt.NDArray[np.int32]:
    """int32 [n] behind `encode_tokens`; ValueError for what cannot come from there."""
    if len(elements) % ELEMENT_BYTES:
        raise ValueError("elements are cut within a token")
    ids = np.frombuffer(elements, "<u4")
    if ids.size and int(ids.max()) > np.iinfo(np.int32).max:
        raise ValueError("elements hold something else than tokens")
    return ids.astype(np.int32)


def root_id(fingerprint_id: bytes) -> bytes:
    """The chain's start for a request whose fingerprint is `fingerprint_id` (32 bytes)."""
    return blake2b(b"\0" + fingerprint_id, digest_size=ID_BYTES, person=_PERSON).digest()


def _child(kind: bytes, parent: bytes, elements: bytes) -> bytes:
    n_positions = len(elements) // ELEMENT_BYTES
    data = b"".join((kind, parent, n_positions.to_bytes(4, "little"), elements))
    return blake2b(data, digest_size=ID_BYTES, person=_PERSON).digest()


def block_id(parent: bytes, elements: bytes) -> bytes:
    """Id of a record below `parent`: of a full block when `elements` has 256 positions, else of a tail."""
    kind = b"\1" if len(elements) == BLOCK * ELEMENT_BYTES else b"\2"
    return _child(kind, parent, elements)


def point_id(parent: bytes, rest: bytes) -> bytes:
    """Id of a point whose prefix ends with `rest` (fewer than 256 positions, or none) below `parent`."""
    return _child(b"\3", parent, rest)


def split(elements: bytes) -> list[bytes]:
    """`elements` cut into blocks; the last one may be partial."""
    step = BLOCK * ELEMENT_BYTES
    return [elements[start : start + step] for start in range(0, len(elements), step)]


def chain(root: bytes, elements: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """``(id, parent, elements)`` of every block of a prefix in order, a partial last block included."""
    parts = split(elements)
    ids = [root]
    for part in parts:
        ids.append(block_id(ids[-1], part))
    return [(child, parent, part) for (parent, child), part in zip(pairwise(ids), parts, strict=True)]


def common_positions(a: bytes | memoryview, b: bytes | memoryview) -> int:
    """Length of the longest common prefix of two runs of elements, in whole positions."""
    n_bytes = min(len(a), len(b)) // ELEMENT_BYTES * ELEMENT_BYTES
    left, right = np.frombuffer(a, "<u4", n_bytes // 4), np.frombuffer(b, "<u4", n_bytes // 4)
    different = np.flatnonzero(left != right)
    return int(different[0]) if different.size else n_bytes // ELEMENT_BYTES
