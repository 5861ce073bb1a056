"""A named save as one file, to be moved between machines and stores.

    8 bytes    magic
    u32        length of the header
    header     msgpack: [version, name, note, model, created ms, fingerprint, number of tokens, blocks, point]
               block: [elements, [[group, layout id, bytes, bytes per part], ...]]
               point: nothing, or [number of tokens, [[part, layout id, bytes, bytes per part], ...]]
    parts      of every segment in order, the point's last: u32 length, xxh3-128 (as in the store), bytes
    32 bytes   blake2b-256 of all before

Files of before there were points lack the last field of the header.

The file may come from anywhere: lengths are checked before anything is read, the digest before anything is
believed, and every part again while it is stored.
"""

import errno
import os
import secrets
import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Self, cast

import msgpack
import numpy as np

from store import chain, manifests
from store.chain import Tokens
from store.environment import Environment, Txn
from store.errors import Damaged, UnknownName
from store.fingerprint import Fingerprint
from store.parts import MAX_PART_BYTES, Bytes, part_sizes, read_part, sum_of
from store.points import key_for, read_point
from store.records import BlockRecord, ManifestRecord, PointRecord, SegmentRecord
from store.update import Segment, read_block

MAGIC = b"KVSTORE1"
VERSION = 1
_MAX_HEADER = 64 << 20
_MAX_SEGMENT = 1 << 32
_DIGEST_BYTES = 32
_PART = struct.Struct("<I16s")
_CHUNK = 1 << 20


Announced = tuple[str, str, int, int]
"""A segment in the header: ``(group, layout id, bytes, bytes per part)``."""


@dataclass(frozen=True)
class PortableBlock:
    """A block announced by the header."""

    elements: bytes
    segments: tuple[Announced, ...]


@dataclass(frozen=True)
class PortablePoint:
    """The point announced by the header."""

    n_tokens: int
    parts: tuple[Announced, ...]


@dataclass(frozen=True)
class Header:
    name: str
    note: str
    model: str
    created_ms: int
    fingerprint: Fingerprint
    n_tokens: int
    blocks: tuple[PortableBlock, ...]
    point: PortablePoint | None = None

    @property
    def tokens(self) -> Tokens:
        elements = b"".join(block.elements for block in self.blocks)
        return chain.decode_tokens(elements[: self.n_tokens * chain.ELEMENT_BYTES])


def write_portable(environment: Environment, name: str, path: Path) -> int:
    """Write the save `name` to `path`, whole or not at all; return the file's size.

    Raises `UnknownName`, `Damaged`, or OSError; `path` is replaced, never followed when it is a link.
    """
    save = environment.read(lambda txn: _collect(environment, txn, name))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            size = _write(environment, _Digesting(file), name, save)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return size


@dataclass(frozen=True)
class _Save:
    """All records of a save: blocks by id, and its point by key."""

    record: ManifestRecord
    blocks: list[tuple[bytes, BlockRecord]]
    point: PointRecord | None
    fingerprint: Fingerprint


def _collect(environment: Environment, txn: Txn, name: str) -> _Save:
    value = txn.get(name.encode(), db=environment.man)
    if value is None:
        raise UnknownName(name)
    record = ManifestRecord.decode(name.encode(), value)
    blocks: list[tuple[bytes, BlockRecord]] = []
    for block in record.ids:
        stored = read_block(environment, txn, block)
        if stored is None or not stored.is_restorable:
            raise Damaged(f"the save {name!r} has lost block {len(blocks)}")
        blocks.append((block, stored))
    point = read_point(environment, txn, record.point) if record.point else None
    if record.point and (point is None or not point.segments):
        raise Damaged(f"the save {name!r} has lost its point")
    fingerprint = manifests.read_fingerprint(environment, txn, record.fingerprint)
    if fingerprint is None:
        raise Damaged(f"the save {name!r} has lost its fingerprint record")
    return _Save(record, blocks, point, fingerprint)


class _Digesting:
    """Writes to a file and digests what it writes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self.n_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.n_bytes += len(data)

    def finish(self) -> int:
        self._file.write(self._digest.digest())
        return self.n_bytes + _DIGEST_BYTES


def _write(environment: Environment, out: _Digesting, name: str, save: _Save) -> int:
    record, point = save.record, save.point
    out.write(_header(name, save))
    buffer = np.empty(MAX_PART_BYTES, np.uint8)
    for block, stored in save.blocks:
        _write_parts(environment, out, block, stored.segments, buffer)
    if point is not None:
        _write_parts(environment, out, record.point[-chain.ID_BYTES :], point.segments, buffer)
    return out.finish()


def _header(name: str, save: _Save) -> bytes:
    record, point = save.record, save.point
    fields = (
        *(name, record.note, record.model, record.created_ms),
        *(save.fingerprint.pack(), record.n_tokens),
        [(stored.elements, _announced(stored.segments)) for _, stored in save.blocks],
        None if point is None else (point.n_tokens, _announced(point.segments)),
    )
    header = cast(bytes, msgpack.packb((VERSION, *fields), use_bin_type=True))
    return MAGIC + struct.pack("<I", len(header)) + header


def _announced(segments: Iterable[SegmentRecord]) -> list[Announced]:
    return [(s.group, s.layout_id, s.n_bytes, s.part_bytes) for s in segments]


def _write_parts(
    environment: Environment,
    out: _Digesting,
    id_: bytes,
    segments: Iterable[SegmentRecord],
    buffer: Bytes,
) -> None:
    for segment in segments:
        for part, size in enumerate(part_sizes(segment.n_bytes, segment.part_bytes)):
            target = buffer[:size]
            environment.read(
                partial(_read_part, environment, id_=id_, segment=segment, part=part, target=target)
            )
            out.write(_PART.pack(size, segment.sum_of_part(part)))
            out.write(target.data)


def _read_part(
    environment: Environment, txn: Txn, id_: bytes, segment: SegmentRecord, part: int, target: Bytes
) -> None:
    read_part(txn, environment.dat, id_, segment, part, target)


class PortableFile:
    """An exported save, verified as a whole when it is opened."""

    def __init__(self, path: Path) -> None:
        """Raises `Damaged` for what is not a whole exported save, OSError for what cannot be read."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._file = os.fdopen(fd, "rb")
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Damaged("not a file")
            _check_digest(self._file, os.fstat(fd).st_size)
            self.header = _read_header(self._file)
        except Damaged as error:
            self._file.close()
            raise Damaged(f"{path}: {error}") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def blocks(self) -> Iterator[tuple[int, tuple[Segment, ...]]]:
        """``(index, segments)`` in order, each verified, each in buffers of its own. Raises `Damaged`."""
        parent = self.header.fingerprint.root
        for index, block in enumerate(self.header.blocks):
            name = chain.block_id(parent, block.elements)
            yield index, self._segments(name, block.segments)
            parent = name

    def point(self) -> tuple[Segment, ...]:
        """The parts of the point, verified; read after all blocks. Raises `Damaged`."""
        announced = self.header.point
        if announced is None:
            return ()
        root = self.header.fingerprint.root
        links = chain.chain(root, b"".join(block.elements for block in self.header.blocks))
        key = key_for(root, links, announced.n_tokens)
        return self._segments(key[-chain.ID_BYTES :], announced.parts)

    def _segments(self, id_: bytes, announced: Iterable[Announced]) -> tuple[Segment, ...]:
        return tuple(self._segment(id_, number, *segment) for number, segment in enumerate(announced))

    def _segment(
        self, id_: bytes, number: int, group: str, layout_id: str, n_bytes: int, part_bytes: int
    ) -> Segment:
        data = np.empty(n_bytes, np.uint8)
        start = 0
        for part, size in enumerate(part_sizes(n_bytes, part_bytes)):
            announced, expected = _PART.unpack(self._exactly(_PART.size))
            target = data[start : start + size]
            if announced != size or self._file.readinto(target.data) != size:
                raise Damaged(f"part {part} of segment {group} has another length")
            if sum_of(id_, number, part, target.data) != expected:
                raise Damaged(f"part {part} of segment {group} does not match its checksum")
            start += size
        return Segment(group, layout_id, part_bytes, data)

    def _exactly(self, n_bytes: int) -> bytes:
        data = self._file.read(n_bytes)
        if len(data) != n_bytes:
            raise Damaged("it ends too early")
        return data


def _check_digest(file: BinaryIO, size: int) -> None:
    head = file.read(len(MAGIC))
    if head != MAGIC or size < len(MAGIC) + 4 + _DIGEST_BYTES:
        raise Damaged("not an exported save")
    digest = blake2b(head, digest_size=_DIGEST_BYTES)
    left = size - len(MAGIC) - _DIGEST_BYTES
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise Damaged("it ends too early")
        digest.update(chunk)
        left -= len(chunk)
    if file.read(_DIGEST_BYTES) != digest.digest():
        raise Damaged("it does not match its digest: incomplete or changed")
    file.seek(len(MAGIC))


def _read_header(file: BinaryIO) -> Header:
    (length,) = struct.unpack("<I", file.read(4))
    if length > _MAX_HEADER:
        raise Damaged(f"a header of {length} bytes")
    try:
        version, *fields = msgpack.unpackb(file.read(length), use_list=False)
        if version != VERSION:
            raise Damaged(f"it has version {version}, this program reads {VERSION}")
        name, note, model, created_ms, packed, n_tokens, listed = fields[:7]
        blocks = tuple(PortableBlock(bytes(elements), tuple(parts)) for elements, parts in listed)
        words = (str(name), str(note), str(model), int(created_ms))
        at, found = (fields[7] if len(fields) > 7 else None) or (0, ())
        point = PortablePoint(int(at), tuple(found)) if found else None
        header = Header(*words, Fingerprint.unpack(packed), int(n_tokens), blocks, point)
        _check_header(header)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Damaged(f"its header is not what it should be: {error}") from None
    return header


def _check_header(header: Header) -> None:
    full = chain.BLOCK * chain.ELEMENT_BYTES
    for index, block in enumerate(header.blocks):
        is_last = index == len(header.blocks) - 1
        if not 0 < len(block.elements) <= full or (len(block.elements) < full and not is_last):
            raise Damaged(f"block {index} has {len(block.elements)} bytes of elements")
        _check_announced(f"block {index}", block.segments)
    if len(header.tokens) != header.n_tokens or header.n_tokens <= 0:
        raise Damaged(f"{header.n_tokens} tokens were announced")
    if header.point is not None:
        _check_announced("the point", header.point.parts)
        if not 0 < header.point.n_tokens <= header.n_tokens:
            raise Damaged(f"a point at {header.point.n_tokens} of {header.n_tokens} tokens was announced")


def _check_announced(owner: str, segments: Iterable[Announced]) -> None:
    for group, layout_id, n_bytes, part_bytes in segments:
        sizes_fit = 0 < n_bytes <= _MAX_SEGMENT and 0 < part_bytes <= MAX_PART_BYTES
        if not (isinstance(group, str) and isinstance(layout_id, str) and sizes_fit):
            raise Damaged(f"{owner} has a segment of {n_bytes} bytes in parts of {part_bytes}")
