"""How the bytes of a segment lie in the `dat` table: in parts of at most 1,048,560 bytes.

That is 256 pages less LMDB's 16-byte header: with larger values the file grows by fragmentation and one
commit stalls others. A part is a whole number of the segment's units (16 positions), so the first rows of a
block can be verified without its other parts; a part needed only in part is verified whole in a scratch
buffer.
"""

from collections.abc import Iterator

import lmdb
import numpy as np
import numpy.typing as npt
import xxhash

from store.environment import Txn
from store.errors import Damaged
from store.records import SegmentRecord

Bytes = npt.NDArray[np.uint8]

MAX_PART_BYTES = 1_048_560
SUM_BYTES = 16


def part_bytes(unit_bytes: int) -> int:
    """Size of a part: the largest multiple of `unit_bytes` that fits, or the limit when one unit does not."""
    return MAX_PART_BYTES // unit_bytes * unit_bytes or MAX_PART_BYTES


def part_key(block: bytes, number: int, part: int) -> bytes:
    """Key of a part in `dat`: of block `block`, segment `number`."""
    return b"B" + block + bytes((number,)) + part.to_bytes(2, "big")


def _sum(block: bytes, number: int, part: int, data: memoryview) -> bytes:
    """xxh3-128, seeded by the place, so that parts swapped with each other are found."""
    seed = int.from_bytes(block[:8], "little") ^ (number << 16 | part)
    return xxhash.xxh3_128_digest(data, seed=seed)


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
        sums.append(_sum(block, number, part, stored))
    return SegmentRecord(group, layout_id, number, data.size, size, b"".join(sums))


def read_segment(
    txn: Txn,
    dat: lmdb._Database,
    block: bytes,
    segment: SegmentRecord,
    destination: Bytes,
    scratch: Bytes,
) -> None:
    """Copy the first ``destination.size`` bytes of a segment and verify them; raises `Damaged`.

    Sums are computed over the destination, that is over the bytes that will be used. KV bytes move by numpy
    assignment only: it releases the interpreter lock, where ``bytes()`` of a large value stops every thread.
    `scratch` has `MAX_PART_BYTES`. After an error the destination holds garbage.
    """
    if segment.codec != 0 or not 0 < segment.part_bytes <= MAX_PART_BYTES:
        raise Damaged(f"segment {segment.group} has an unknown coding")
    for part, start, stored_size, wanted in _pieces(segment, destination.size):
        view = txn.get(part_key(block, segment.number, part), db=dat)
        if view is None or len(view) != stored_size:
            raise Damaged(f"part {part} of segment {segment.group} is missing or has another length")
        whole = wanted == stored_size
        target = destination[start : start + wanted] if whole else scratch[:stored_size]
        target[:] = np.frombuffer(view, np.uint8)
        expected = segment.sums[part * SUM_BYTES : (part + 1) * SUM_BYTES]
        if _sum(block, segment.number, part, target.data) != expected:
            raise Damaged(f"part {part} of segment {segment.group} does not match its checksum")
        if not whole:
            destination[start : start + wanted] = target[:wanted]


def _pieces(segment: SegmentRecord, n_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """``(part, offset, stored bytes, wanted bytes)`` of the parts that hold the first `n_bytes`."""
    for part, start in enumerate(range(0, n_bytes, segment.part_bytes)):
        stored = min(segment.part_bytes, segment.n_bytes - start)
        yield part, start, stored, min(stored, n_bytes - start)


def delete_segment(txn: Txn, dat: lmdb._Database, block: bytes, segment: SegmentRecord) -> None:
    """Remove every part of a segment; parts that are gone already are no error."""
    for part in range(len(segment.sums) // SUM_BYTES):
        txn.delete(part_key(block, segment.number, part), db=dat)
