"""What is written beside the bytes: msgpack arrays, version first, sealed by a checksum.

A sealed value is ``msgpack(array) | xxh3-64``, the sum seeded by the record's key, so that flipped bits and
swapped records are both found. Fields are only ever appended: an older reader ignores what it does not know,
and a newer one takes the defaults for what an older record lacks.
"""

from dataclasses import MISSING, astuple, dataclass, fields
from functools import cache
from typing import Any, ClassVar, Self, cast

import msgpack
import xxhash

from store.chain import BLOCK
from store.errors import Damaged

MAX_RECORD_BYTES = 1 << 16
MAX_MANIFEST_BYTES = 1 << 24
_SEAL_BYTES = 8
_SUM_BYTES = 16
_PAGE = 4096
_PAGE_HEADER = 16
_INLINE_LIMIT = 2000
_SIDE_BYTES = 1024


def seal(key: bytes, fields_: tuple[Any, ...]) -> bytes:
    """The stored form of a record under `key`."""
    body = cast(bytes, msgpack.packb(fields_, use_bin_type=True))
    return body + xxhash.xxh3_64_digest(body, seed=xxhash.xxh3_64_intdigest(key))


def unseal(key: bytes, value: bytes | memoryview, limit: int = MAX_RECORD_BYTES) -> tuple[Any, ...]:
    """The fields behind `seal`; raises `Damaged`.

    A length beyond `limit` is refused before a byte is touched.
    """
    if not _SEAL_BYTES < len(value) <= limit:
        raise Damaged(f"a record of {len(value)} bytes")
    body = value[:-_SEAL_BYTES]
    if xxhash.xxh3_64_digest(body, seed=xxhash.xxh3_64_intdigest(key)) != bytes(value[-_SEAL_BYTES:]):
        raise Damaged("a record does not match its checksum")
    try:
        unpacked = msgpack.unpackb(body, use_list=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise Damaged(f"a record is not msgpack: {error}") from None
    if not isinstance(unpacked, tuple) or not unpacked:
        raise Damaged("a record is not an array")
    return unpacked


class Record:
    """Base of the records: a dataclass whose fields follow the version in the array."""

    VERSION: ClassVar[int] = 1
    LIMIT: ClassVar[int] = MAX_RECORD_BYTES

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(cast(Any, self)))

    def encode(self, key: bytes) -> bytes:
        return seal(key, (self.VERSION, *self._fields()))

    @classmethod
    def decode(cls, key: bytes, value: bytes | memoryview) -> Self:
        """Raises `Damaged`, also for a version that this program does not know."""
        version, *rest = unseal(key, value, cls.LIMIT)
        if version != cls.VERSION:
            raise Damaged(f"a {cls.__name__} of version {version}; this program reads {cls.VERSION}")
        n_needed, n_known = _numbers_of_fields(cast(Any, cls))
        if len(rest) < n_needed:
            raise Damaged(f"a {cls.__name__} of {len(rest)} fields")
        try:
            return cls._of(rest[:n_known])
        except TypeError as error:
            raise Damaged(f"a {cls.__name__} with a field of another type: {error}") from None

    @classmethod
    def _of(cls, values: list[Any]) -> Self:
        return cls(*values)


@cache
def _numbers_of_fields(cls: type[Record]) -> tuple[int, int]:
    """How many a record must have, and how many this program knows."""
    known = fields(cast(Any, cls))
    return sum(field.default is MISSING for field in known), len(known)


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """Where one cache group's bytes of a block are and what they sum up to.

    `number` is the group's place in the block's data keys. `part_bytes` is the size of all parts but the
    last; `sums` holds one xxh3-128 per part; `codec` 0 means raw.
    """

    group: str
    layout_id: str
    number: int
    n_bytes: int
    part_bytes: int
    sums: bytes
    codec: int = 0

    @property
    def n_parts(self) -> int:
        return len(self.sums) // _SUM_BYTES

    def sum_of_part(self, part: int) -> bytes:
        return self.sums[part * _SUM_BYTES : (part + 1) * _SUM_BYTES]


@dataclass(frozen=True, slots=True)
class BlockRecord(Record):
    """A block (256 rows) or a leaf (fewer). `elements` are compared on every hit.

    A record without segments is known but cannot be restored, since its bytes were quarantined, unless it is
    `rowless`: of a model that keeps nothing per position, only points.
    `fingerprint` is the first 8 bytes of the id; `created_ms` is Unix time.
    """

    fingerprint: bytes
    parent: bytes
    index: int
    elements: bytes
    segments: tuple[SegmentRecord, ...]
    created_ms: int
    rowless: bool = False

    @property
    def n_rows(self) -> int:
        return len(self.elements) // 4

    @property
    def is_restorable(self) -> bool:
        return self.rowless or bool(self.segments)

    @property
    def is_leaf(self) -> bool:
        return self.n_rows < BLOCK

    @property
    def groups(self) -> frozenset[str]:
        return frozenset(segment.group for segment in self.segments)

    def _fields(self) -> tuple[Any, ...]:
        segments = tuple(astuple(segment) for segment in self.segments)
        head = (self.fingerprint, self.parent, self.index, self.elements, segments, self.created_ms)
        return (*head, True) if self.rowless else head

    @classmethod
    def _of(cls, values: list[Any]) -> Self:
        values[4] = _segments(values[4])
        return cls(*values)

    def stored_bytes(self) -> int:
        """What the record costs in the file: pages for its parts; its elements lie in `idx` and `kid`.

        What is kept as `Usage.n_bytes` must stay equal to this: a change here is a change of the schema.
        """
        return 2 * len(self.elements) + _SIDE_BYTES + _bytes_of(self.segments)


@dataclass(frozen=True, slots=True)
class PointRecord(Record):
    """What a sequence remembers as of exactly `n_tokens`, in parts that are segments by name.

    `parent` is the last full block before it or the root, `elements` are the rest (fewer than 256 positions)
    and compared on every hit. Without segments its bytes were quarantined.
    """

    fingerprint: bytes
    parent: bytes
    n_tokens: int
    elements: bytes
    segments: tuple[SegmentRecord, ...]
    created_ms: int

    @property
    def n_rows(self) -> int:
        return len(self.elements) // 4

    @property
    def groups(self) -> frozenset[str]:
        return frozenset(segment.group for segment in self.segments)

    def _fields(self) -> tuple[Any, ...]:
        segments = tuple(astuple(segment) for segment in self.segments)
        return (self.fingerprint, self.parent, self.n_tokens, self.elements, segments, self.created_ms)

    @classmethod
    def _of(cls, values: list[Any]) -> Self:
        values[4] = _segments(values[4])
        return cls(*values)

    def stored_bytes(self) -> int:
        """As of `BlockRecord`."""
        return len(self.elements) + _SIDE_BYTES + _bytes_of(self.segments)


def _segments(values: Any) -> tuple[SegmentRecord, ...]:
    return tuple(SegmentRecord(*segment) for segment in values)


def _bytes_of(segments: tuple[SegmentRecord, ...]) -> int:
    total = 0
    for segment in segments:
        n_whole = segment.n_parts - 1
        last = segment.n_bytes - n_whole * segment.part_bytes
        total += n_whole * _on_pages(segment.part_bytes) + _on_pages(last)
    return total


def _on_pages(n_bytes: int) -> int:
    if n_bytes <= _INLINE_LIMIT:
        return n_bytes
    return -(-(n_bytes + _PAGE_HEADER) // _PAGE) * _PAGE


@dataclass(frozen=True, slots=True)
class Usage(Record):
    """What eviction knows of a block: `refs` counts saves that hold it, `n_children` records below it.

    Of a point, `place` says where it lies: its key in table `pnt` without the id. Of a block it is empty.
    """

    last_used_ms: int
    hits: int
    refs: int
    n_children: int
    n_bytes: int
    place: bytes = b""

    @property
    def evictable(self) -> bool:
        return self.refs == 0 and self.n_children == 0


@dataclass(frozen=True, slots=True)
class Ledger(Record):
    """Sums over the whole store, changed in the same transaction as the data.

    `clock_ms` is the latest time ever used, so that a clock set back cannot reorder recency; `sequence`
    counts commits. `point_bytes` is the part of `live_bytes` that the `n_points` points take.
    """

    live_bytes: int = 0
    n_blocks: int = 0
    n_manifests: int = 0
    pinned_bytes: int = 0
    clock_ms: int = 0
    sequence: int = 0
    n_points: int = 0
    point_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ManifestRecord(Record):
    """A named save: the blocks that hold its `n_tokens` tokens; they stay while it lives.

    So does the farthest point within them, whose key in table `pnt` is `point`; empty without one.
    """

    LIMIT: ClassVar[int] = MAX_MANIFEST_BYTES

    fingerprint: bytes
    root: bytes
    n_tokens: int
    block_ids: bytes
    note: str
    model: str
    created_ms: int
    point: bytes = b""

    @property
    def ids(self) -> list[bytes]:
        return [self.block_ids[at : at + 32] for at in range(0, len(self.block_ids), 32)]

    @property
    def held(self) -> list[bytes]:
        """Ids of all that it holds: its blocks and its point."""
        return [*self.ids, self.point[-32:]] if self.point else self.ids
