"""A named save as one file, to be moved between machines and stores.

    8 bytes    magic
    u32        length of the header
    header     msgpack: [version, name, note, model, created ms, fingerprint, number of tokens, blocks]
               block: [elements, [[group, layout id, bytes, bytes per part], ...]]
    parts      of every segment in order: u32 length, xxh3-128 (seeded as in the store), bytes
    32 bytes   blake2b-256 of all before

The file may come from anywhere: lengths are checked before anything is read, the digest before anything is
believed, and every part again while it is stored.
"""

import os
import stat
import struct
from collections.abc import Iterator
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
from store.records import BlockRecord, ManifestRecord, SegmentRecord
from store.update import Segment, read_block

MAGIC = b"KVSTORE1"
VERSION = 1
_MAX_HEADER = 64 << 20
_MAX_SEGMENT = 1 << 32
_DIGEST_BYTES = 32
_PART = struct.Struct("<I16s")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class PortableBlock:
    """A block announced by the header: its elements and ``(group, layout id, bytes, bytes per part)``."""

    elements: bytes
    segments: tuple[tuple[str, str, int, int], ...]


@dataclass(frozen=True)
class Header:
    name: str
    note: str
    model: str
    created_ms: int
    fingerprint: Fingerprint
    n_tokens: int
    blocks: tuple[PortableBlock, ...]

    @property
    def tokens(self) -> Tokens:
        elements = b"".join(block.elements for block in self.blocks)
        return chain.decode_tokens(elements[: self.n_tokens * chain.ELEMENT_BYTES])


def write_portable(environment: Environment, name: str, path: Path) -> int:
    """Write the save `name` to `path`, whole or not at all; return the file's size.

    Raises `UnknownName`, `Damaged`, or OSError; `path` is replaced, never followed when it is a link.
    """
    record, blocks, fingerprint = environment.read(lambda txn: _collect(environment, txn, name))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            size = _write(environment, _Digesting(file), name, record, blocks, fingerprint)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return size


def _collect(
    environment: Environment, txn: Txn, name: str
) -> tuple[ManifestRecord, list[tuple[bytes, BlockRecord]], Fingerprint]:
    value = txn.get(name.encode(), db=environment.man)
    if value is None:
        raise UnknownName(name)
    record = ManifestRecord.decode(name.encode(), value)
    blocks: list[tuple[bytes, BlockRecord]] = []
    for block in record.ids:
        stored = read_block(environment, txn, block)
        if stored is None or not stored.segments:
            raise Damaged(f"the save {name!r} has lost block {len(blocks)}")
        blocks.append((block, stored))
    fingerprint = manifests.read_fingerprint(environment, txn, record.fingerprint)
    if fingerprint is None:
        raise Damaged(f"the save {name!r} has lost its fingerprint record")
    return record, blocks, fingerprint


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


def _write(
    environment: Environment,
    out: _Digesting,
    name: str,
    record: ManifestRecord,
    blocks: list[tuple[bytes, BlockRecord]],
    fingerprint: Fingerprint,
) -> int:
    listed = [
        (stored.elements, [(s.group, s.layout_id, s.n_bytes, s.part_bytes) for s in stored.segments])
        for _, stored in blocks
    ]
    fields = (name, record.note, record.model, record.created_ms, fingerprint.pack(), record.n_tokens, listed)
    header = cast(bytes, msgpack.packb((VERSION, *fields), use_bin_type=True))
    out.write(MAGIC + struct.pack("<I", len(header)) + header)
    buffer = np.empty(MAX_PART_BYTES, np.uint8)
    for block, stored in blocks:
        for segment in stored.segments:
            for part, size in enumerate(part_sizes(segment.n_bytes, segment.part_bytes)):
                copy = partial(
                    _read_part, environment, block=block, segment=segment, part=part, target=buffer[:size]
                )
                environment.read(copy)
                out.write(_PART.pack(size, segment.sum_of_part(part)))
                out.write(buffer[:size].data)
    return out.finish()


def _read_part(
    environment: Environment, txn: Txn, block: bytes, segment: SegmentRecord, part: int, target: Bytes
) -> None:
    read_part(txn, environment.dat, block, segment, part, target)


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
            segments = tuple(
                self._segment(name, number, *segment) for number, segment in enumerate(block.segments)
            )
            yield index, segments
            parent = name

    def _segment(
        self, block: bytes, number: int, group: str, layout_id: str, n_bytes: int, part_bytes: int
    ) -> Segment:
        data = np.empty(n_bytes, np.uint8)
        start = 0
        for part, size in enumerate(part_sizes(n_bytes, part_bytes)):
            announced, expected = _PART.unpack(self._exactly(_PART.size))
            target = data[start : start + size]
            if announced != size or self._file.readinto(target.data) != size:
                raise Damaged(f"part {part} of segment {group} has another length")
            if sum_of(block, number, part, target.data) != expected:
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
        header = Header(*words, Fingerprint.unpack(packed), int(n_tokens), blocks)
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
        for group, layout_id, n_bytes, part_bytes in block.segments:
            sizes_fit = 0 < n_bytes <= _MAX_SEGMENT and 0 < part_bytes <= MAX_PART_BYTES
            if not (isinstance(group, str) and isinstance(layout_id, str) and sizes_fit):
                raise Damaged(f"block {index} has a segment of {n_bytes} bytes in parts of {part_bytes}")
    if len(header.tokens) != header.n_tokens or header.n_tokens <= 0:
        raise Damaged(f"{header.n_tokens} tokens were announced")
