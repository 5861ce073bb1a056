"""A GGUF writer that also writes what no sane writer would: every field can be replaced by a wrong one."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtime.gguf import GGMLType

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B"} | {
    U64: "Q",
    I64: "q",
    F64: "d",
}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def scalar(kind: int, value: object) -> bytes:
    if kind == STRING:
        assert isinstance(value, str | bytes)
        return string(value)
    return struct.pack("<" + _FORMATS[kind], value)


def array(kind: int, values: Sequence[object]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(scalar(kind, v) for v in values)


@dataclass
class Tensor:
    """A tensor-table row. `type_id`, `offset` and `data` follow from the type unless given."""

    name: str | bytes
    shape: tuple[int, ...]
    type: GGMLType = GGMLType.F32
    type_id: int | None = None
    offset: int | None = None
    data: bytes | None = None


@dataclass
class File:
    """A whole file as its parts. `n_tensors` and `n_keys` are what the header claims."""

    metadata: list[tuple[str | bytes, int, bytes]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    n_tensors: int | None = None
    n_keys: int | None = None
    alignment: int = 32

    def put(self, key: str | bytes, kind: int, value: object) -> "File":
        self.metadata.append((key, kind, scalar(kind, value)))
        return self

    def put_array(self, key: str | bytes, kind: int, values: Sequence[object]) -> "File":
        self.metadata.append((key, ARRAY, array(kind, values)))
        return self

    def bytes(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.metadata) if self.n_keys is None else self.n_keys
        out = bytearray(self.magic + self.version + struct.pack("<QQ", n_tensors, n_keys))
        for key, kind, value in self.metadata:
            out += string(key) + struct.pack("<I", kind) + value
        body = bytearray()
        for tensor in self.tensors:
            body += bytes(-len(body) % self.alignment)
            offset = len(body) if tensor.offset is None else tensor.offset
            out += string(tensor.name) + struct.pack("<I", len(tensor.shape))
            out += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
            out += struct.pack("<IQ", tensor.type if tensor.type_id is None else tensor.type_id, offset)
            body += bytes(tensor.type.tensor_bytes(tensor.shape)) if tensor.data is None else tensor.data
        if body:
            out += bytes(-len(out) % self.alignment)
        return bytes(out + body)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path


def tiny_model() -> File:
    """A sound file with every kind of value and three tensors."""
    file = File().put("general.architecture", STRING, "llama").put("general.name", STRING, "tiny")
    for kind, value in ((U8, 200), (I8, -3), (U16, 60_000), (I16, -30_000), (U32, 7), (I32, -7)):
        file.put(f"test.scalar{kind}", kind, value)
    file.put("test.u64", U64, 1 << 40).put("test.i64", I64, -(1 << 40))
    file.put("test.f32", F32, 0.5).put("test.f64", F64, 0.1).put("test.bool", BOOL, 1)
    file.put("llama.block_count", U32, 2)
    file.put_array("llama.attention.head_count_kv", I32, [2, 4])
    file.put_array("test.none", U32, []).put_array("test.nothing", STRING, [])
    file.put_array("test.floats", F32, [1.0, 2.5]).put_array("test.bools", BOOL, [1, 0])
    file.put_array("test.names", STRING, ["a", "", "gr\u00fcn", b"\xff\xfe", "x" * 300])
    file.tensors = [
        Tensor("token_embd.weight", (64, 3), GGMLType.Q4_0),
        Tensor("output_norm.weight", (64,)),
        Tensor("blk.0.ffn.weight", (32, 2, 2), GGMLType.Q8_0),
    ]
    return file
