"""One GGUF file: header, metadata and tensor table, checked before anything is believed.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
from dataclasses import dataclass

from runtime.errors import ModelError
from runtime.gguf.cursor import Cursor, Fault, MetadataValue
from runtime.gguf.types import REMOVED_TYPES, GGMLType

MAGIC = b"GGUF"
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = 1024
MAX_TENSOR_NAME_BYTES = 255
DEFAULT_ALIGNMENT = 32
_SMALLEST_KEY = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8
_OTHER_FORMATS = {
    b"ggjt": "a GGML file older than GGUF",
    b"ggml": "a GGML file older than GGUF",
    b"ggmf": "a GGML file older than GGUF",
    b"ggla": "a GGML adapter older than GGUF",
    b"PK\x03\x04": "a ZIP archive (a PyTorch checkpoint?)",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a model file. `shape` is in GGUF order: row length first."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor and the offset of its first byte from the start of its file."""

    info: TensorInfo
    offset: int


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """What one file says. `problems` are faults of single tensors; those tensors are left out."""

    version: int
    metadata: dict[str, MetadataValue]
    tensors: dict[str, Placed]
    problems: tuple[ModelError, ...]


def parse(data: memoryview, fault: Fault) -> ParsedFile:
    """Parse a whole file.

    Raises the ModelError that `fault` makes where the file as a whole is not readable.
    """
    cursor = Cursor(data, fault)
    version = _header(cursor)
    n_tensors = _count(cursor, "tensors", MAX_TENSORS, _SMALLEST_TENSOR)
    n_keys = _count(cursor, "metadata keys", MAX_KEYS, _SMALLEST_KEY)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(n_keys):
        key = cursor.name("a metadata key", MAX_KEY_BYTES)
        if key in metadata:
            raise fault(f"damaged: metadata key {key} occurs twice")
        metadata[key] = cursor.value(key)
    tensors, problems = _tensor_table(cursor, n_tensors, _alignment(metadata, fault))
    return ParsedFile(version, metadata, tensors, tuple(problems))


def _header(cursor: Cursor) -> int:
    head = bytes(cursor.data[:4])
    if head != MAGIC:
        if not head:
            raise cursor.fault("not a GGUF file: it is empty")
        if head[0] < 0x20 and bytes(cursor.data[8:10]) == b'{"':
            raise cursor.fault("not a GGUF file: it looks like safetensors")
        known = _OTHER_FORMATS.get(head)
        raise cursor.fault(f"not a GGUF file: {known or f'it begins with {bytes(cursor.data[:16])!r}'}")
    cursor.skip(4, "the magic")
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise cursor.fault("a big-endian GGUF file: convert it to little-endian")
    if version == 1:
        raise cursor.fault("GGUF version 1, which no current tool writes: convert the model again")
    if version not in (2, 3):
        raise cursor.fault(f"GGUF version {version} is not supported (2 and 3 are)")
    return version


def _count(cursor: Cursor, what: str, limit: int, smallest: int) -> int:
    n = cursor.u64(f"the number of {what}")
    if n > limit or n * smallest > cursor.remaining:
        raise cursor.fault(
            f"truncated or damaged: it claims {n} {what}; the limit is {limit} "
            f"and its {len(cursor.data)} bytes hold at most {cursor.remaining // smallest}"
        )
    return n


def _alignment(metadata: dict[str, MetadataValue], fault: Fault) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise fault(
            f"damaged: general.alignment must be a power of two from 8 to 2^20, not {alignment!r:.40}"
        )
    return alignment


def _tensor_table(
    cursor: Cursor, n_tensors: int, alignment: int
) -> tuple[dict[str, Placed], list[ModelError]]:
    rows = []
    names = set()
    for _ in range(n_tensors):
        name = cursor.name("a tensor name", MAX_TENSOR_NAME_BYTES)
        if name in names:
            raise cursor.fault(f"damaged: tensor {name} occurs twice")
        names.add(name)
        n_dims = cursor.u32(f"the number of dimensions of {name}")
        if not 1 <= n_dims <= 4:
            raise cursor.fault(f"damaged: tensor {name} has {n_dims} dimensions, 1 to 4 are possible")
        shape = tuple(cursor.u64(f"the shape of {name}") for _ in range(n_dims))
        rows.append((name, shape, cursor.u32(f"the type of {name}"), cursor.u64(f"the offset of {name}")))

    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, Placed] = {}
    problems: list[ModelError] = []
    for name, shape, type_id, offset in rows:
        info = _tensor_info(name, shape, type_id, cursor.fault, problems)
        if info is None:
            continue
        if offset % alignment:
            raise cursor.fault(f"damaged: offset {offset} of tensor {name} is not a multiple of {alignment}")
        tensors[name] = Placed(info, data_start + offset)
    _check_extent(cursor, tensors, problems)
    return tensors, problems


def _tensor_info(
    name: str,
    shape: tuple[int, ...],
    type_id: int,
    fault: Fault,
    problems: list[ModelError],
) -> TensorInfo | None:
    if 0 in shape or math.prod(shape) >= 1 << 62:
        raise fault(f"damaged: tensor {name} has the impossible shape {list(shape)}")
    kind = GGMLType.of(type_id)
    if kind is None:
        removed = REMOVED_TYPES.get(type_id)
        what = f"{removed} was removed from the format; quantise again" if removed else "unknown here"
        problems.append(fault(f"tensor {name} has type {type_id}: {what}", unsupported=True))
        return None
    if shape[0] % kind.block:
        raise fault(
            f"damaged: tensor {name} has rows of {shape[0]}, not a multiple of {kind.name}'s {kind.block}"
        )
    if kind.rows > 1 and math.prod(shape[1:]) % kind.rows:
        raise fault(f"damaged: {kind.name} interleaves {kind.rows} rows, tensor {name} is {list(shape)}")
    return TensorInfo(name, shape, kind, kind.tensor_bytes(shape))


def _check_extent(cursor: Cursor, tensors: dict[str, Placed], problems: list[ModelError]) -> None:
    """Find tensors that end beyond the file, drop them and say how long the file should be."""
    size = len(cursor.data)
    beyond = [p for p in tensors.values() if p.offset + p.info.n_bytes > size]
    if not beyond:
        return
    expected = max(p.offset + p.info.n_bytes for p in beyond)
    first = min(beyond, key=lambda p: p.offset)
    problems.append(
        cursor.fault(
            f"truncated: expected at least {expected} bytes, found {size} "
            f"(tensor {first.info.name} ends at {first.offset + first.info.n_bytes})"
        )
    )
    for placed in beyond:
        del tensors[placed.info.name]
