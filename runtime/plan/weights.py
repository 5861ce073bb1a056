"""Tensors of a model file, packed for the kernels: panels of matrices, f32 vectors, raw rows of tables."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile, TensorInfo
from runtime.kernels.dequant import dequantise_rows
from runtime.kernels.formats import FORMATS
from runtime.kernels.pack import pack, packed_bytes
from runtime.kernels.simd import LANES
from runtime.plan.arena import Arena

Progress = Callable[[float], None]


def padded(rows: int) -> int:
    """`rows` rounded up to whole panels."""
    return -(-rows // LANES) * LANES


@dataclass(frozen=True, slots=True)
class Panels:
    """Row panels of one matrix, or of several of one type stacked: `address`, `rows` (padded) x `k`."""

    type_name: str
    address: int
    rows: int
    k: int


@dataclass(frozen=True, slots=True)
class ExpertPanels:
    """Row panels of each expert's matrix, or of several stacked: `rows` (padded) x `k` per expert."""

    type_name: str
    address: int
    rows: int
    k: int
    bytes_per_expert: int


@dataclass(frozen=True, slots=True)
class Table:
    """A matrix left in the file's layout, for looking up rows."""

    type_name: str
    address: int
    row_bytes: int
    rows: int
    k: int


class Weights:
    """Reads and packs the tensors of `file` into `arena`, reporting the share done to `progress`."""

    def __init__(
        self, file: ModelFile, arena: Arena, n_threads: int, progress: Progress | None = None
    ) -> None:
        self._file = file
        self._arena = arena
        self._threads = n_threads
        self._progress = progress
        self._total = max(1, sum(t.n_bytes for t in file.tensors.values()))
        self._done = 0
        self._vectors: dict[tuple[str, ...], int] = {}
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._file.tensors

    def info(self, name: str) -> TensorInfo:
        """Errors: ModelError when the file lacks the tensor."""
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelError(f"{self._file.path.name}: tensor {name} is missing")
        self._used.add(name)
        return tensor

    def check_used(self) -> None:
        """A layer's tensors all mean something; layers that were not touched at all may stay so.

        Errors: UnsupportedModel for a tensor that the plan of its layer left out: the results would be wrong.
        """
        layers = {name.split(".")[1] for name in self._used if name.startswith("blk.")}
        for name in self._file.tensors:
            if name.startswith("blk.") and name.split(".")[1] in layers and name not in self._used:
                raise UnsupportedModel(
                    f"{self._file.path.name}: tensor {name} is unknown in {self._file.architecture} models"
                )

    def matrix_info(self, name: str, k: int | None = None, rows: int | None = None) -> TensorInfo:
        """A 2-D tensor of a type the matmul kernels know; `k` and `rows` are checked where given."""
        return self._multiplied(name, (k, rows))

    def experts_info(self, name: str, k: int, rows: int, n_expert: int) -> TensorInfo:
        """A 3-D tensor of one matrix per expert."""
        return self._multiplied(name, (k, rows, n_expert))

    def _multiplied(self, name: str, shape: tuple[int | None, ...]) -> TensorInfo:
        tensor = self.info(name)
        found = list(tensor.shape)
        if len(found) != len(shape):
            raise ModelError(
                f"{self._file.path.name}: tensor {name} has shape {found}, expected {len(shape)}-D"
            )
        want = [known if n is None else n for n, known in zip(shape, found, strict=True)]
        if found != want:
            raise ModelError(f"{self._file.path.name}: tensor {name} has shape {found}, expected {want}")
        if tensor.type.name not in FORMATS:
            raise UnsupportedModel(f"{self._file.path.name}: tensor {name} has type {tensor.type.name}")
        if tensor.shape[0] % LANES:
            raise UnsupportedModel(
                f"{self._file.path.name}: tensor {name} has rows of {tensor.shape[0]}, not whole {LANES}s"
            )
        return tensor

    def panels(self, names: Sequence[str]) -> Panels:
        """Pack matrices of one type and one k on top of each other, each padded to whole panels."""
        tensors = [self.matrix_info(name) for name in names]
        type_name, k = tensors[0].type.name, tensors[0].shape[0]
        sizes = [packed_bytes(type_name, t.shape[1], k) for t in tensors]
        address = self._arena.take(sum(sizes))
        at = address
        for tensor, size in zip(tensors, sizes, strict=True):
            raw = self._file.tensor_bytes(tensor.name)
            pack(type_name, raw.ctypes.data, tensor.shape[1], k, at, self._threads)
            at += size
            self._report(tensor.n_bytes)
        return Panels(type_name, address, sum(padded(t.shape[1]) for t in tensors), k)

    def expert_panels(self, names: Sequence[str]) -> ExpertPanels:
        """Pack 3-D tensors of one type, k and number of experts; an expert's matrices are stacked."""
        tensors = [self.info(name) for name in names]
        type_name, (k, _, n_expert) = tensors[0].type.name, tensors[0].shape
        sizes = [packed_bytes(type_name, t.shape[1], k) for t in tensors]
        address = self._arena.take(n_expert * sum(sizes))
        sources = [self._file.tensor_bytes(name) for name in names]

        def pack_expert(expert: int) -> None:
            at = address + expert * sum(sizes)
            for tensor, raw, size in zip(tensors, sources, sizes, strict=True):
                pack(type_name, raw.ctypes.data + expert * (raw.nbytes // n_expert), tensor.shape[1], k, at)
                at += size

        with ThreadPoolExecutor(self._threads, thread_name_prefix="pack") as pool:
            for _ in pool.map(pack_expert, range(n_expert)):
                pass
        self._report(sum(t.n_bytes for t in tensors))
        return ExpertPanels(type_name, address, sum(padded(t.shape[1]) for t in tensors), k, sum(sizes))

    def expert_vectors(self, names: Sequence[str], widths: Sequence[int], n_expert: int) -> int:
        """Address of f32 [n_expert][width + ...], stacked as `expert_panels` does; missing ones are 0."""
        out = self._arena.array((n_expert, sum(map(padded, widths))), np.float32)
        at = 0
        for name, width in zip(names, widths, strict=True):
            if self.has(name):
                out[:, at : at + width] = self._lines(name, width, n_expert)
            at += padded(width)
        address: int = out.ctypes.data
        return address

    def _lines(self, name: str, width: int, n: int) -> npt.NDArray[np.float32]:
        tensor = self.info(name)
        if tuple(tensor.shape) != (width, n):
            raise ModelError(
                f"{self._file.path.name}: tensor {name} has shape {list(tensor.shape)}, expected {[width, n]}"
            )
        self._report(tensor.n_bytes)
        return dequantise_rows(tensor.type.name, self._file.tensor_bytes(name).reshape(n, -1), width)

    def vector(self, *names: str, widths: Sequence[int]) -> int:
        """Address of f32 vectors stacked as `panels` stacks matrices; fillings and missing ones are 0."""
        known = self._vectors.get(names)
        if known is not None:
            return known
        out = self._arena.array((sum(map(padded, widths)),), np.float32)
        at = 0
        for name, width in zip(names, widths, strict=True):
            if self.has(name):
                out[at : at + width] = self.values(name, width)
            at += padded(width)
        address: int = out.ctypes.data
        self._vectors[names] = address
        return address

    def ones(self, width: int) -> int:
        """Address of a vector of ones, for norms without weights."""
        known = self._vectors.get(("ones", str(width)))
        if known is None:
            out = self._arena.array((padded(width),), np.float32)
            out[:] = 1.0
            known = self._vectors["ones", str(width)] = out.ctypes.data
        return known

    def values(self, name: str, width: int) -> npt.NDArray[np.float32]:
        """A 1-D tensor as float32 [width]."""
        tensor = self.info(name)
        if tensor.shape[0] != width or any(n != 1 for n in tensor.shape[1:]):
            raise ModelError(
                f"{self._file.path.name}: tensor {name} has shape {list(tensor.shape)}, expected [{width}]"
            )
        self._report(tensor.n_bytes)
        return dequantise_rows(tensor.type.name, self._file.tensor_bytes(name), width).reshape(-1)

    def matrix(self, name: str, k: int) -> npt.NDArray[np.float32]:
        """A 2-D tensor as float32 [rows, k]."""
        tensor = self.matrix_info(name, k)
        self._report(tensor.n_bytes)
        return dequantise_rows(
            tensor.type.name, self._file.tensor_bytes(name).reshape(tensor.shape[1], -1), k
        )

    def table(self, name: str, k: int) -> Table:
        """Rows to be looked up; the mapped file stays their home."""
        tensor = self.matrix_info(name, k)
        raw = self._file.tensor_bytes(name)
        rows = tensor.shape[1]
        self._report(tensor.n_bytes)
        return Table(tensor.type.name, raw.ctypes.data, raw.nbytes // rows, rows, k)

    def _report(self, n_bytes: int) -> None:
        self._done += n_bytes
        if self._progress is not None:
            self._progress(min(1.0, self._done / self._total))
