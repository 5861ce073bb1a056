"""Tensors of a model file, packed for the kernels: panels of matrices, f32 vectors, raw rows of tables."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile, TensorInfo
from runtime.kernels.dequant import dequantise_rows
from runtime.kernels.formats import FORMATS
from runtime.kernels.matmul import MATMUL
from runtime.kernels.pack import pack, packed_bytes
from runtime.kernels.simd import LANES
from runtime.kernels.tape import Native, Op
from runtime.kernels.unpacked import PACK, ROOM, matmul_unpacked
from runtime.plan.arena import Arena

Progress = Callable[[float], None]


def padded(rows: int) -> int:
    """`rows` rounded up to whole panels."""
    return -(-rows // LANES) * LANES


def encode_floats(type_name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.generic]:
    """Values as elements of F32, F16 or BF16 (to nearest even)."""
    if type_name != "BF16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, {"F32": np.float32, "F16": np.float16}[type_name])
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Panels:
    """Weights for the matmul ops, of one type: a matrix, or one per expert, or several of those stacked.

    `address` is that of panels of 16 rows, `panel_bytes` each; `rows` (padded) x `k` of them make a matrix,
    and experts lie `expert_bytes` apart. Where `file_rows` is not 0 the address is that of as many rows in
    the file, one matrix alone: ops pack a panel when they meet it.
    """

    type_name: str
    address: int
    rows: int
    k: int
    panel_bytes: int
    expert_bytes: int = 0
    file_rows: int = 0

    @property
    def op(self) -> Op:
        return matmul_unpacked if self.file_rows else MATMUL[self.type_name]

    @property
    def op_params(self) -> tuple[int | Native, ...]:
        """What the op takes beyond `MATMUL`'s parameters."""
        if not self.file_rows:
            return ()
        return MATMUL[self.type_name], PACK[self.type_name], self.file_rows, self.panel_bytes

    @property
    def stride(self) -> int:
        """Bytes from the first row of a panel to that of the next."""
        fmt = FORMATS[self.type_name]
        return LANES * fmt.row_bytes(self.k) if self.file_rows else self.panel_bytes


@dataclass(frozen=True, slots=True)
class Table:
    """A matrix left in the file's layout, for looking up rows."""

    type_name: str
    address: int
    row_bytes: int
    rows: int
    k: int


class Weights:
    """Reads and packs the tensors of `file` into `arena`, reporting the share done to `progress`.

    Without `repack` matrices stay in the mapped file, but for the few whose panels outgrow the ops' scratch.
    """

    def __init__(
        self, file: ModelFile, arena: Arena, n_threads: int, progress: Progress | None = None, *,
        repack: bool = True,
    ) -> None:  # fmt: skip
        self._file = file
        self._arena = arena
        self._threads = n_threads
        self._repack = repack
        self._progress = progress
        self.n_bytes = sum(t.n_bytes for t in file.tensors.values())
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

    def ignore(self, *names: str) -> None:
        """Tensors that files may have although the forward pass does without them."""
        self._used.update(names)

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

    def matrix_info(
        self, name: str, k: int | None = None, rows: int | None = None, *, narrow: bool = False
    ) -> TensorInfo:
        """A 2-D tensor of a type the matmul kernels know; `k` and `rows` are checked where given.

        With `narrow` k need not be a multiple of 16.
        """
        return self._multiplied(name, (k, rows), 1 if narrow else LANES)

    def experts_info(
        self, name: str, k: int, rows: int, n_expert: int, *, narrow: bool = False
    ) -> TensorInfo:
        """A 3-D tensor of one matrix per expert; `narrow` as in `matrix_info`."""
        return self._multiplied(name, (k, rows, n_expert), 1 if narrow else LANES)

    def _multiplied(self, name: str, shape: tuple[int | None, ...], multiple: int) -> TensorInfo:
        tensor = self.info(name)
        found = list(tensor.shape)
        if len(found) != len(shape):
            raise ModelError(
                f"{self._file.path.name}: tensor {name} has shape {found}, expected {len(shape)}-D"
            )
        want = [known if n is None else n for n, known in zip(shape, found, strict=True)]
        if found != want:
            raise ModelError(f"{self._file.path.name}: tensor {name} has shape {found}, expected {want}")
        self._check_type(tensor)
        if tensor.shape[0] % multiple:
            raise UnsupportedModel(
                f"{self._file.path.name}: tensor {name} has rows of {tensor.shape[0]}, not whole {multiple}s"
            )
        return tensor

    def panels(self, names: Sequence[str]) -> list[Panels]:
        """Matrices of one type and k: packed on top of each other, each padded, or one by one unpacked."""
        tensors = [self.info(name) for name in names]
        return self._unpacked(tensors) or [self._packed(tensors, 1)]

    def expert_panels(self, names: Sequence[str]) -> list[Panels]:
        """3-D tensors of one type, k and number of experts, as `panels`; an expert's matrices are stacked."""
        tensors = [self.info(name) for name in names]
        return self._unpacked(tensors) or [self._packed(tensors, tensors[0].shape[2])]

    def grouped_panels(self, name: str, k: int, rows: int, groups: int) -> Panels:
        """A matrix of `rows` rows for each group: a tensor ``[k, rows, groups]`` or ``[k, rows * groups]``.

        The result is as if groups were experts. Errors: UnsupportedModel for rows that are not whole panels.
        """
        if len(self.info(name).shape) == 2:
            tensor = self.matrix_info(name, k, rows * groups)
        else:
            tensor = self.experts_info(name, k, rows, groups)
        if rows % LANES:
            raise UnsupportedModel(
                f"{self._file.path.name}: {name} has {rows} rows per group, not whole {LANES}s"
            )
        n_expert = tensor.shape[2] if len(tensor.shape) == 3 else 1
        found = (self._unpacked([tensor]) or [self._packed([tensor], n_expert)])[0]
        apart = rows // LANES * found.stride
        return replace(found, rows=rows, expert_bytes=apart, file_rows=rows if found.file_rows else 0)

    def packed_matrices(self, type_name: str, matrices: npt.NDArray[np.float32], name: str) -> Panels:
        """f32 [groups][rows][k] as panels of a float type; rows are whole panels, `name` is for messages."""
        groups, rows, k = matrices.shape
        group_bytes = packed_bytes(type_name, rows, k)
        address = self._arena.take(groups * group_bytes, name)
        raw = encode_floats(type_name, matrices)
        pack(type_name, raw.ctypes.data, groups * rows, k, address, self._threads)
        return Panels(type_name, address, rows, k, FORMATS[type_name].panel_bytes(k), group_bytes)

    def _unpacked(self, tensors: Sequence[TensorInfo]) -> list[Panels]:
        """Nothing, where they are to be packed."""
        type_name, k = tensors[0].type.name, tensors[0].shape[0]
        panel_bytes = FORMATS[type_name].panel_bytes(k)
        if self._repack or panel_bytes > ROOM:
            return []
        parts = []
        for t in tensors:
            raw, rows = self._file.tensor_bytes(t.name), t.shape[1]
            expert_bytes = rows * FORMATS[type_name].row_bytes(k)
            parts.append(
                Panels(type_name, raw.ctypes.data, padded(rows), k, panel_bytes, expert_bytes, file_rows=rows)
            )
            self._report(t.n_bytes)
        return parts

    def _packed(self, tensors: Sequence[TensorInfo], n_expert: int) -> Panels:
        type_name, k = tensors[0].type.name, tensors[0].shape[0]
        sizes = [packed_bytes(type_name, t.shape[1], k) for t in tensors]
        stride = sum(sizes)
        address = self._arena.take(n_expert * stride, " + ".join(t.name for t in tensors))
        for tensor, at in zip(tensors, accumulate(sizes, initial=address), strict=False):
            raw = self._file.tensor_bytes(tensor.name)
            apart = raw.nbytes // n_expert
            moves = [(raw.ctypes.data + e * apart, at + e * stride) for e in range(n_expert)]
            self._pack_each(type_name, tensor.shape[1], k, moves)
            self._file.release(tensor.name)
            self._report(tensor.n_bytes)
        rows = sum(padded(t.shape[1]) for t in tensors)
        return Panels(type_name, address, rows, k, FORMATS[type_name].panel_bytes(k), stride)

    def _pack_each(self, type_name: str, n_rows: int, k: int, moves: Sequence[tuple[int, int]]) -> None:
        """Pack matrices that lie at the first address of each pair to the second."""
        if len(moves) == 1:
            pack(type_name, moves[0][0], n_rows, k, moves[0][1], self._threads)
            return
        with ThreadPoolExecutor(self._threads, thread_name_prefix="pack") as pool:
            list(pool.map(lambda move: pack(type_name, move[0], n_rows, k, move[1]), moves))

    def expert_vectors(self, names: Sequence[str], widths: Sequence[int], n_expert: int) -> int:
        """Address of f32 [n_expert][width + ...], stacked as `expert_panels` does; missing ones are 0."""
        out = self._arena.array((n_expert, sum(map(padded, widths))), np.float32, " + ".join(names))
        at = 0
        for name, width in zip(names, widths, strict=True):
            if self.has(name):
                out[:, at : at + width] = self.lines(name, width, n_expert)
            at += padded(width)
        address: int = out.ctypes.data
        return address

    def lines(self, name: str, width: int, n: int) -> npt.NDArray[np.float32]:
        """A tensor of that shape, but for dims of 1, as float32 [n, width], for what is not multiplied."""
        tensor = self.info(name)
        if [m for m in tensor.shape if m != 1] != [m for m in (width, n) if m != 1]:
            raise ModelError(
                f"{self._file.path.name}: tensor {name} has shape {list(tensor.shape)}, expected {[width, n]}"
            )
        return self._decoded(tensor, n, width)

    def vector(self, *names: str, widths: Sequence[int]) -> int:
        """Address of f32 vectors stacked as `panels` stacks matrices; fillings and missing ones are 0.

        Errors: ModelError when all are missing.
        """
        known = self._vectors.get(names)
        if known is not None:
            return known
        if not any(map(self.has, names)):
            self.info(names[0])
        out = self._arena.array((sum(map(padded, widths)),), np.float32, " + ".join(names))
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
            out = self._arena.array((padded(width),), np.float32, "ones")
            out[:] = 1.0
            known = self._vectors["ones", str(width)] = out.ctypes.data
        return known

    def values(self, name: str, width: int) -> npt.NDArray[np.float32]:
        """A 1-D tensor, but for dims of 1, as float32 [width]."""
        tensor = self.info(name)
        if [m for m in tensor.shape if m != 1] != [m for m in (width,) if m != 1]:
            raise ModelError(
                f"{self._file.path.name}: tensor {name} has shape {list(tensor.shape)}, expected [{width}]"
            )
        return self._decoded(tensor, 1, width).reshape(-1)

    def integers(self, name: str, shape: tuple[int, int], n: int) -> int:
        """Address of a copy of an I32 tensor [rows][columns], all of whose numbers lie in [0, n).

        A copy, for they are indices: the mapped file may change. Errors: ModelError.
        """
        tensor = self.info(name)
        if tensor.type.name != "I32" or tuple(tensor.shape) != shape[::-1]:
            raise ModelError(
                f"{self._file.path.name}: tensor {name} is {tensor.type.name} {list(tensor.shape)},"
                f" expected I32 {list(shape[::-1])}"
            )
        out = self._arena.array(shape, np.int32, name)
        out[:] = self._file.tensor_bytes(name).view(np.int32).reshape(shape)
        if (out < 0).any() or (out >= n).any():
            raise ModelError(f"{self._file.path.name}: tensor {name} has numbers outside of 0 to {n - 1}")
        self._report(tensor.n_bytes)
        address: int = out.ctypes.data
        return address

    def matrix(self, name: str, k: int) -> npt.NDArray[np.float32]:
        """A 2-D tensor as float32 [rows, k]."""
        tensor = self.matrix_info(name, k)
        return self._decoded(tensor, tensor.shape[1], k)

    def table(self, name: str, k: int) -> Table:
        """Rows to be looked up; the mapped file stays their home."""
        tensor = self.matrix_info(name, k)
        raw = self._file.tensor_bytes(name)
        rows = tensor.shape[1]
        self._report(tensor.n_bytes)
        return Table(tensor.type.name, raw.ctypes.data, raw.nbytes // rows, rows, k)

    def _check_type(self, tensor: TensorInfo) -> None:
        """Errors: UnsupportedModel for a type without kernels."""
        if tensor.type.name not in FORMATS:
            raise UnsupportedModel(
                f"{self._file.path.name}: tensor {tensor.name} has type {tensor.type.name}"
            )

    def _decoded(self, tensor: TensorInfo, rows: int, k: int) -> npt.NDArray[np.float32]:
        """float32 [rows, k]. Errors: UnsupportedModel."""
        self._check_type(tensor)
        self._report(tensor.n_bytes)
        raw = self._file.tensor_bytes(tensor.name)
        return dequantise_rows(tensor.type.name, raw.reshape(rows, -1), k)

    def _report(self, n_bytes: int) -> None:
        self._done += n_bytes
        if self._progress is not None:
            self._progress(min(1.0, self._done / max(1, self.n_bytes)))
