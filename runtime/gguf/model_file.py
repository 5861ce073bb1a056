"""A model on disk: one GGUF file or all its shards, mapped into memory."""

import mmap
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf.check import check_values
from runtime.gguf.cursor import MetadataValue
from runtime.gguf.metadata import Metadata
from runtime.gguf.overrides import apply_overrides
from runtime.gguf.parse import ParsedFile, TensorInfo, parse
from runtime.gguf.types import FILE_TYPES

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MAX_SHARDS = 1024
_LONGEST_ARCHITECTURE = 64


@dataclass(frozen=True, slots=True)
class _Mapping:
    """An open file. `stat` is (size, mtime_ns, inode) at the time of opening."""

    path: Path
    data: memoryview
    stat: tuple[int, int, int]

    def fault(self, message: str, *, unsupported: bool = False) -> ModelError:
        return (UnsupportedModel if unsupported else ModelError)(f"{self.path}: {message}")


class ModelFile(Metadata):
    """An open model: its metadata (of the first shard) and the tensors of all shards.

    `problems` are the faults that `open_model` tolerated; it is empty unless ``lenient=True``.
    """

    def __init__(
        self,
        files: Sequence[_Mapping],
        parsed: Sequence[ParsedFile],
        metadata: Mapping[str, MetadataValue],
        problems: Sequence[ModelError],
    ) -> None:
        super().__init__(MappingProxyType(dict(metadata)))
        self._files = tuple(files)
        self._places = {
            name: (shard, placed.offset)
            for shard, one in enumerate(parsed)
            for name, placed in one.tensors.items()
        }
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: placed.info for one in parsed for name, placed in one.tensors.items()}
        )
        self.version = parsed[0].version
        self.problems = tuple(problems)

    @property
    def path(self) -> Path:
        return self._files[0].path

    @property
    def shards(self) -> tuple[Path, ...]:
        return tuple(f.path for f in self._files)

    @property
    def architecture(self) -> str:
        """The model's family, a short name. ModelError where the file has none."""
        name = self.get_str("general.architecture")
        if not name.isprintable() or not 0 < len(name) <= _LONGEST_ARCHITECTURE:
            raise ModelError(f"general.architecture is not a name: {name!r:.60}")
        return name

    def arch_key(self, suffix: str) -> str:
        """The key of a hyperparameter, e.g. ``llama.block_count``."""
        return f"{self.architecture}.{suffix}"

    def has(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelError(f"{self.path}: tensor {name} is missing") from None

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes: a read-only view of the mapping, uint8 [n_bytes]."""
        info = self.tensor(name)
        shard, offset = self._places[name]
        return np.frombuffer(self._files[shard].data, np.uint8, info.n_bytes, offset)

    def release(self, name: str) -> None:
        """Let go of the memory that reading the tensor has mapped; it is mapped again when read again."""
        info = self.tensor(name)
        shard, offset = self._places[name]
        mapped = self._files[shard].data.obj
        first = offset // mmap.PAGESIZE * mmap.PAGESIZE
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED, first, offset + info.n_bytes - first)

    @property
    def n_params(self) -> int:
        return sum(t.n_elements for t in self.tensors.values())

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.n_bytes for t in self.tensors.values())

    @property
    def file_type(self) -> str:
        """llama.cpp's name of the mix of types, guessed from the tensors where the file does not say."""
        number = self.metadata.get("general.file_type")
        if isinstance(number, int) and (label := FILE_TYPES.get(number)):
            return label
        if not self.tensors:
            return "unknown"
        sizes: Counter[str] = Counter()
        for tensor in self.tensors.values():
            sizes[tensor.type.name] += tensor.n_bytes
        return f"{sizes.most_common(1)[0][0]} (guessed)"

    def verify_unchanged(self) -> None:
        """Raise ModelError if a file was replaced, truncated or written to since it was opened."""
        for file in self._files:
            try:
                now = _stat(file.path.stat())
            except OSError as error:
                raise file.fault(f"is gone since it was opened: {error.strerror}") from None
            if now != file.stat:
                raise file.fault("has changed since it was opened")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the mapping. Views lent by `tensor_bytes` stay valid and keep it alive."""
        self._files = tuple(_Mapping(f.path, memoryview(b""), f.stat) for f in self._files)
        self._places = {}
        self.tensors = MappingProxyType({})


def open_model(
    path: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    check: bool = False,
    lenient: bool = False,
) -> ModelFile:
    """Open a GGUF file, or all shards of a split model given any of them.

    `overrides` are ``KEY=TYPE:VALUE[,...]`` strings that replace metadata. `check` also looks for NaN and
    infinite weights, which reads the whole file. With `lenient`, tensors of unknown type, tensors beyond
    the end and missing shards are left out and listed in `problems`, so that the rest can be shown.

    Raises ModelError, or UnsupportedModel for a sound file with unknown tensor types.
    """
    problems: list[ModelError] = []
    files, parsed = _open_shards(Path(path), problems)
    for one in parsed:
        problems += one.problems
    if problems and not lenient:
        raise problems[0]
    metadata = dict(parsed[0].metadata)
    apply_overrides(metadata, overrides)
    model = ModelFile(files, parsed, metadata, problems)
    if check:
        for info in model.tensors.values():
            check_values(info, model.tensor_bytes(info.name))
    return model


def _open_shards(path: Path, problems: list[ModelError]) -> tuple[list[_Mapping], list[ParsedFile]]:
    given = _map(path)
    parsed = parse(given.data, given.fault)
    count = parsed.metadata.get("split.count", 0)
    if type(count) is not int or not 0 <= count <= _MAX_SHARDS:
        raise given.fault(f"damaged: split.count is {count!r:.40}")
    if count <= 1:
        return [given], [parsed]
    name = _SHARD_NAME.fullmatch(path.name)
    if name is None or int(name["count"]) != count or not 1 <= int(name["number"]) <= count:
        raise given.fault(f"one of {count} shards, but it is not named like NAME-00001-of-{count:05}.gguf")

    files, parts = [], []
    for number in range(1, count + 1):
        if number == int(name["number"]):
            file, part = given, parsed
        else:
            sibling = path.with_name(f"{name['stem']}-{number:05}-of-{count:05}.gguf")
            if not sibling.exists():
                problems.append(ModelError(f"{sibling}: shard {number} of {count} is missing"))
                continue
            file = _map(sibling)
            part = parse(file.data, file.fault)
        if part.metadata.get("split.no") != number - 1 or part.metadata.get("split.count") != count:
            raise file.fault(f"not shard {number} of {count} of this model: check its name and origin")
        files.append(file)
        parts.append(part)
    _check_shards(files, parts, problems)
    return files, parts


def _check_shards(files: list[_Mapping], parts: list[ParsedFile], problems: list[ModelError]) -> None:
    owner: dict[str, Path] = {}
    for file, part in zip(files, parts, strict=True):
        for name in part.tensors:
            if name in owner:
                raise file.fault(f"damaged: tensor {name} is also in {owner[name].name}")
            owner[name] = file.path
    expected = parts[0].metadata.get("split.tensors.count", len(owner))
    if expected != len(owner) and not problems and not any(p.problems for p in parts):
        raise files[0].fault(f"damaged: the shards hold {len(owner)} tensors, expected {expected}")


def _map(path: Path) -> _Mapping:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError(f"{path}: {'a directory' if path.is_dir() else 'not a regular file'}")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                return _Mapping(path, memoryview(b""), _stat(status))
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise ModelError(f"{path}: cannot be mapped into memory") from None
    return _Mapping(path, memoryview(mapped), _stat(status))


def _stat(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino
