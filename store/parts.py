"""How the bytes of a segment lie in the `dat` table: in parts of at most 1,048,560 bytes.

That is 256 pages less LMDB's 16-byte header: with larger values the file grows by fragmentation and one
commit stalls others. A part is a whole number of the segment's units (16 positions), so the first rows of a
block can be verified without its other parts; a part needed only in part is verified whole in a scratch
buffer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import lmdb
import numpy as np
import numpy.typing as npt
import xxhash

from store.environment import Txn
from store.errors import Damaged
from store.records import SegmentRecord

Bytes = npt.NDArray[np.uint8]
Copy = Callable[[Iterable[tuple[Bytes, Bytes, int]]], Sequence[bytes]]
"""Copies each first to its second, which has its size; returns the xxh3-128 digests of what arrived, seeded
by the thirds. It may copy the first while the next are still looked for, and has done so with those before an
error. It does not hold the interpreter lock: ``bytes()`` of a large value would stop every thread."""

MAX_PART_BYTES = 1_048_560
_STRIDE = 1 << 18


class Piece(NamedTuple):
    """A part on its way: `source` goes to `destination`, where its sum, seeded, must be `digest`.

    Where only its first bytes are wanted they go on from there to `wanted`. `group` and `part` are its name.
    """

    source: Bytes
    destination: Bytes
    seed: int
    digest: bytes
    group: str
    part: int
    wanted: Bytes | None = None


def copy_and_sum(pieces: Iterable[tuple[Bytes, Bytes, int]]) -> list[bytes]:
    """The `Copy` that needs no compiler."""
    return [_copy_and_sum(*piece) for piece in pieces]


def _copy_and_sum(source: Bytes, destination: Bytes, seed: int) -> bytes:
    """It goes in strides, and sums up what it copied in the cache."""
    digest = xxhash.xxh3_128(seed=seed)
    for start in range(0, destination.size, _STRIDE):
        copied = destination[start : start + _STRIDE]
        copied[:] = source[start : start + _STRIDE]
        digest.update(copied.data)
    return digest.digest()


def part_bytes(unit_bytes: int) -> int:
    """Size of a part: the largest multiple of `unit_bytes` that fits, or the limit when one unit does not."""
    return MAX_PART_BYTES // unit_bytes * unit_bytes or MAX_PART_BYTES


def part_key(block: bytes, number: int, part: int) -> bytes:
    """Key of a part in `dat`: of block `block`, segment `number`."""
    return b"B" + block + bytes((number,)) + part.to_bytes(2, "big")


def sum_of(block: bytes, number: int, part: int, data: memoryview) -> bytes:
    """xxh3-128, seeded by the place, so that parts swapped with each other are found."""
    return xxhash.xxh3_128_digest(data, seed=_seed(block, number, part))


def _seed(block: bytes, number: int, part: int) -> int:
    return int.from_bytes(block[:8], "little") ^ (number << 16 | part)


def write_segment(
    txn: Txn,
    dat: lmdb._Database,
    block: bytes,
    number: int,
    group: str,
    layout_id: str,
    unit_bytes: int,
    data: Bytes,
) -> SegmentRecord:
    """Put `data` (uint8 [n], contiguous) part by part and return its record.

    The sums are taken over what was stored, not over `data`: rows of a lent tile that lie behind the valid
    ones may still be written to by their owner, and must not make the record look damaged for ever.
    """
    size = part_bytes(unit_bytes)
    sums = []
    for part, start in enumerate(range(0, data.size, size)):
        key = part_key(block, number, part)
        txn.put(key, data[start : start + size].data, db=dat)
        stored = txn.get(key, db=dat)
        assert stored is not None
        sums.append(sum_of(block, number, part, stored))
    return SegmentRecord(group, layout_id, number, data.size, size, b"".join(sums))


def read_segment(
    txn: Txn, dat: lmdb._Database, block: bytes, segment: SegmentRecord, destination: Bytes, scratch: Bytes
) -> None:
    """Copy the first ``destination.size`` bytes of a segment and verify them; raises `Damaged`.

    Sums are of the bytes that arrive, that is of those that will be used. `scratch` has `MAX_PART_BYTES`.
    After an error the destination holds garbage.
    """
    for piece in pieces_of(txn, dat, block, segment, destination, lambda: scratch):
        _take(piece)


def read_part(
    txn: Txn, dat: lmdb._Database, block: bytes, segment: SegmentRecord, part: int, destination: Bytes
) -> None:
    """Copy one part into `destination`, which has its size, and verify it there; raises `Damaged`."""
    number = segment.number
    source = _stored(txn, dat, part_key(block, number, 0)[:-2], segment, part)
    digest = segment.sum_of_part(part)
    _take(Piece(source, destination, _seed(block, number, part), digest, segment.group, part))


def pieces_of(
    txn: Txn,
    dat: lmdb._Database,
    block: bytes,
    segment: SegmentRecord,
    destination: Bytes,
    scratch: Callable[[], Bytes],
) -> Iterator[Piece]:
    """What to copy for the first ``destination.size`` bytes of a segment; raises `Damaged`.

    A part wanted only in part goes to a buffer of `MAX_PART_BYTES` that `scratch` gives.
    """
    number, group, size = segment.number, segment.group, segment.part_bytes
    seed, key = _seed(block, number, 0), part_key(block, number, 0)[:-2]
    for part, start in enumerate(range(0, min(destination.size, segment.n_bytes), size)):
        target = wanted = destination[start : start + size]
        source = _stored(txn, dat, key, segment, part)
        if source.size != target.size:
            target = scratch()[: source.size]
        digest = segment.sum_of_part(part)
        yield Piece(source, target, seed ^ part, digest, group, part, None if target is wanted else wanted)


def _stored(txn: Txn, dat: lmdb._Database, key: bytes, segment: SegmentRecord, part: int) -> Bytes:
    """A part as it lies in the file; `key` is that of its segment. Raises `Damaged`."""
    if segment.codec != 0:
        raise Damaged(f"segment {segment.group} has the unknown coding {segment.codec}")
    view = txn.get(key + part.to_bytes(2, "big"), db=dat)
    if view is None or len(view) != min(segment.part_bytes, segment.n_bytes - part * segment.part_bytes):
        raise Damaged(f"part {part} of segment {segment.group} is missing or has another length")
    return np.frombuffer(view, np.uint8)


def arrived(pieces: Iterable[Piece], copy: Copy) -> tuple[int, Piece | None]:
    """Copy `pieces`; how many from the first on arrived whole, and the first that did not."""
    taken: list[Piece] = []

    def places() -> Iterator[tuple[Bytes, Bytes, int]]:
        for piece in pieces:
            taken.append(piece)
            yield piece.source, piece.destination, piece.seed

    sums = copy(places())
    for i, (piece, digest) in enumerate(zip(taken, sums, strict=True)):
        if digest != piece.digest:
            return i, piece
        if piece.wanted is not None:
            piece.wanted[:] = piece.destination[: piece.wanted.size]
    return len(taken), None


def mismatch(piece: Piece) -> str:
    """What to say of a piece that did not arrive whole."""
    return f"part {piece.part} of segment {piece.group} does not match its checksum"


def _take(piece: Piece) -> None:
    _, broken = arrived((piece,), copy_and_sum)
    if broken is not None:
        raise Damaged(mismatch(broken))


def part_sizes(n_bytes: int, size: int) -> list[int]:
    """Sizes of the parts of a segment of `n_bytes`: all of `size` but the last."""
    return [min(size, n_bytes - start) for start in range(0, n_bytes, size)]


def delete_segment(txn: Txn, dat: lmdb._Database, block: bytes, segment: SegmentRecord) -> None:
    """Remove every part of a segment; parts that are gone already are no error."""
    for part in range(segment.n_parts):
        txn.delete(part_key(block, segment.number, part), db=dat)
