"""The plan of a model: a flat list of ops over named buffers, written by a model file as its forward pass.

A model file calls the methods of `Plan` in the order of the computation. Values it handles are `Rows` (an f32
buffer of one row per token) and `Source` (rows that exist only quantised: what feeds a matmul). A source is
quantised when the first matmul asks for it, once per activation kind, in the op that produces it.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile
from runtime.kernels import attention as attn
from runtime.kernels import rows as ops
from runtime.kernels.dequant import EMBED
from runtime.kernels.formats import FORMATS
from runtime.kernels.job import f32_bits
from runtime.kernels.kvtypes import KV_TYPES
from runtime.kernels.matmul import MATMUL
from runtime.kernels.quantise import act_bytes
from runtime.kernels.rope import NEOX, NORM, ROPE_STORE, rope_table
from runtime.kernels.simd import LANES
from runtime.kernels.tape import Op
from runtime.memory.layout import BLOCK, TILE, GroupLayout, MemoryLayout
from runtime.kernels import job
from runtime.plan.arena import Arena
from runtime.plan.weights import Weights, padded


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Sizes that a plan is built for. `n_ctx` is the context of one sequence in tokens."""

    n_ctx: int
    n_ubatch: int
    max_runs: int
    max_outputs: int
    cache_type: str = "f16"


@dataclass(frozen=True, slots=True)
class Rows:
    """f32 rows in memory: `width` floats used of each `ld` bytes; `count` is the job variable of their number."""

    address: int
    ld: int
    width: int
    count: int = job.ROWS

    def columns(self, first: int, width: int) -> "Rows":
        return Rows(self.address + 4 * first, self.ld, width, self.count)


@dataclass(slots=True)
class Source:
    """Rows of `k` values that `emit(kind, dst)` quantises into activation tiles."""

    k: int
    count: int
    emit: Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotation: its per-step table (`address`, `ld` bytes per row), rotated dims and pairing."""

    address: int
    ld: int
    n_rot: int
    pairing: int


@dataclass(slots=True)
class CacheGroup:
    """Layers that share block tables. Layers are appended as the plan meets them."""

    name: str
    index: int
    window: int
    kv_type: str
    tile_bytes: int = 0
    n_layers: int = 0
    shapes: list[tuple[int, int, int]] = field(default_factory=list)
    descriptors: list[np.ndarray] = field(default_factory=list)  # type: ignore[type-arg]
    patches: list[list[int]] = field(default_factory=list)

    def layout(self) -> GroupLayout:
        runs = (f"{len(list(g))}x{s[0]}h{s[1]}k{s[2]}v" for s, g in groupby(self.shapes))
        layout_id = f"gqa-tile16-v1:{self.kv_type}:{'+'.join(runs)}:w{self.window}"
        return GroupLayout(self.name, layout_id, self.tile_bytes, self.window)


class Plan:
    """Ops of one model for one set of sizes. Model files see the methods, the executor reads the rest."""

    def __init__(self, file: ModelFile, weights: Weights, arena: Arena, options: PlanOptions) -> None:
        self.file = file
        self.weights = weights
        self.options = options
        self.arena = arena
        self.tape: list[list[int]] = []
        self.ops: list[Op] = []
        self.groups: list[CacheGroup] = []
        self.n_vocab = 0
        self.logits = Rows(0, 0, 0)
        self.identity: list[tuple[str, str | int | float]] = []
        self.tokens = arena.array((options.n_ubatch,), np.int32)
        self._buffers: dict[str, Rows] = {}
        self._activations: dict[int, tuple[int, int]] = {}
        self._owner: dict[int, Source] = {}

    def op(self, op: Op, *params: int) -> None:
        """Append an op; compiles nothing yet."""
        self.ops.append(op)
        self.tape.append(list(params))

    def buffer(self, name: str, width: int, count: int = job.ROWS) -> Rows:
        """The f32 buffer of that name, made on first use; layers share it by using the same name."""
        known = self._buffers.get(name)
        if known is None:
            n_rows = self.options.n_ubatch if count == job.ROWS else self.options.max_outputs
            ld = 4 * padded(width)
            known = Rows(self.arena.take(n_rows * ld), ld, width, count)
            self._buffers[name] = known
        assert known.width == width and known.count == count, name
        return known

    def embedding(self, name: str, width: int, scale: float = 1.0) -> Rows:
        """x = scale * rows of the table at the step's tokens."""
        table = self.weights.table(name, width)
        x = self.buffer("x", width)
        self.n_vocab = table.rows
        self.op(EMBED[table.type_name], table.address, table.row_bytes, table.k, self.tokens.ctypes.data,
                x.address, x.ld, f32_bits(scale), x.count)  # fmt: skip
        return x

    def rms_norm(self, x: Rows, weight: str, eps: float) -> Source:
        w = self.weights.vector(weight, widths=[x.width])

        def emit(kind: int, dst: int) -> None:
            self.op(ops.norm_quant, x.address, x.ld, w, x.width, f32_bits(eps), dst, kind, x.count)

        return Source(x.width, x.count, emit)

    def rms_norm_add(self, x: Rows, weight: str, eps: float, residual: Rows) -> None:
        """residual += rms_norm(x)"""
        w = self.weights.vector(weight, widths=[x.width])
        self.op(ops.norm_add, x.address, x.ld, w, x.width, f32_bits(eps), residual.address, residual.ld, x.count)

    def head_norm(self, qkv: Rows, heads: int, kv_heads: int, d: int, q: str, k: str, eps: float) -> None:
        """RMS norm of every query and key head, in place."""
        wq, wk = self.weights.vector(q, widths=[d]), self.weights.vector(k, widths=[d])
        self.op(ops.head_norm, qkv.address, qkv.ld, heads, kv_heads, d, wq, wk, f32_bits(eps), qkv.count)

    def rows(self, x: Rows) -> Source:
        """Plain rows as the input of a matmul."""

        def emit(kind: int, dst: int) -> None:
            self.op(ops.quant, x.address, x.ld, x.width, dst, kind, x.count)

        return Source(x.width, x.count, emit)

    def gated(self, gate_up: Rows, n: int, activation: str) -> Source:
        """activation(gate) * up of rows that hold both halves; `activation` is "silu" or "gelu"."""
        fused = ops.swiglu_quant if activation == "silu" else ops.geglu_quant

        def emit(kind: int, dst: int) -> None:
            self.op(fused, gate_up.address, gate_up.ld, n, dst, kind, gate_up.count, 4 * padded(n))

        return Source(n, gate_up.count, emit)

    def matmul(
        self, x: Source, names: Sequence[str], out: str, *, biases: Sequence[str] = (), residual: Rows | None = None
    ) -> Rows:
        """out = x . [W0 | W1 | ...] + biases, each part starting at a multiple of 16 columns.

        With `residual` the result is added to it, and `out` only names scratch.
        """
        tensors = [self.weights.matrix_info(name, x.k) for name in names]
        widths = [t.shape[1] for t in tensors]
        width = sum(map(padded, widths[:-1])) + widths[-1]
        y = self.buffer(out, width, x.count)
        add = residual if residual is not None and not self._any(biases) else None
        column = 0
        for type_name, group in groupby(zip(names, tensors, strict=True), key=lambda p: p[1].type.name):
            part = self.weights.panels([name for name, _ in group])
            act = self._activation(x, FORMATS[type_name].act_kind)
            self.op(MATMUL[type_name], part.address, part.rows // LANES, act, part.k, y.address + 4 * column, y.ld,
                    add.address + 4 * column if add else 0, y.count)  # fmt: skip
            column += part.rows
        if self._any(biases):
            bias = self.weights.vector(*biases, widths=widths)
            self.op(ops.add_bias, y.address, y.ld, bias, column, y.count)
            if residual is not None:
                self.op(ops.add_rows, y.address, y.ld, residual.address, residual.ld, padded(width), y.count)
        return y

    def rope(self, frequencies: Sequence[float], *, neox: bool, magnitude: float = 1.0) -> Rope:
        """A rotation by ``position * frequencies[i]`` of pair i; its table is made once per step."""
        table = self.arena.array((len(frequencies),), np.float64)
        table[:] = frequencies
        n = 2 * len(frequencies)
        ld = 8 * n
        out = self.arena.take(self.options.n_ubatch * ld)
        pairing = NEOX if neox else NORM
        self.op(rope_table, table.ctypes.data, len(frequencies), pairing, f32_bits(magnitude), out, ld)
        digest = ",".join(f.hex() for f in map(float, frequencies))
        self.identity.append((f"rope{sum(n.startswith('rope') for n, _ in self.identity)}",
                              f"{'neox' if neox else 'norm'}:{magnitude!r}:{digest}"))  # fmt: skip
        return Rope(out, ld, n, pairing)

    def cache_group(self, name: str, window: int = 0) -> CacheGroup:
        """A group of layers that see the same window (0: everything)."""
        group = CacheGroup(name, len(self.groups), window, self.options.cache_type)
        assert group.index < job.MAX_GROUPS
        self.groups.append(group)
        return group

    def attention(
        self, qkv: Rows, group: CacheGroup, heads: int, kv_heads: int, dk: int, dv: int, rope: Rope | None,
        scale: float, *, softcap: float = 0.0,
    ) -> Rows:  # fmt: skip
        """Rotate and store this layer's keys and values, then attend; `qkv` rows are q, k, v heads in a row.

        Returns rows of ``heads * dv``.
        """
        if dk % LANES or dv % LANES or heads % kv_heads:
            raise UnsupportedModel(f"heads of {dk} and {dv} values, {heads} over {kv_heads}, are not supported")
        base = group.tile_bytes
        size = KV_TYPES[group.kv_type].size
        group.tile_bytes += kv_heads * TILE * (dk + dv) * size
        group.shapes.append((kv_heads, dk, dv))
        store = [qkv.address, qkv.ld, heads, kv_heads, dk, dv, base, 0, group.index, rope.address if rope else 0,
                 rope.ld if rope else 0, rope.n_rot if rope else 0, rope.pairing if rope else 0]  # fmt: skip
        self.op(ROPE_STORE[group.kv_type], *store)
        group.patches.append(self.tape[-1])
        out = self.buffer("attention", heads * dv)
        max_parts = -(-self.options.n_ctx // BLOCK)
        partials = self._partials(heads // kv_heads, kv_heads, dv, max_parts)
        d = self.arena.array((attn.A_WORDS,), np.int64)
        d[:] = [qkv.address, qkv.ld, out.address, out.ld, base, 0, group.index, heads, kv_heads, dk, dv, group.window,
                f32_bits(scale), f32_bits(softcap), partials, max_parts]  # fmt: skip
        group.descriptors.append(d)
        self.op(attn.ATTENTION[group.kv_type], d.ctypes.data)
        self.op(attn.attention_combine, d.ctypes.data)
        return out

    def output(self, x: Rows, norm: str, head: str, eps: float, *, softcap: float = 0.0) -> None:
        """Norm and head over the rows that want logits."""
        last = self.buffer("out", x.width, job.OUT_ROWS)
        self.op(ops.gather_out, x.address, x.ld, x.width, last.address, last.ld)
        if self.weights.matrix_info(head, x.width).shape[1] != self.n_vocab:
            raise ModelError(f"{self.file.path.name}: {head} and the token embedding differ in rows")
        self.logits = self.matmul(self.rms_norm(last, norm, eps), [head], "logits")
        if softcap:
            self.op(ops.softcap, self.logits.address, self.logits.ld, padded(self.n_vocab), f32_bits(softcap),
                    job.OUT_ROWS)  # fmt: skip

    def logits_array(self) -> npt.NDArray[np.float32]:
        """The head's output: float32 [max_outputs, n_vocab rounded up to panels]."""
        shape = (self.options.max_outputs, self.logits.ld // 4)
        floats = (ctypes.c_float * (shape[0] * shape[1])).from_address(self.logits.address)
        return np.frombuffer(floats, np.float32).reshape(shape)

    def finish(self) -> MemoryLayout:
        """Fill in what is known only when every layer has been seen."""
        for group in self.groups:
            for params in group.patches:
                params[7] = group.tile_bytes
            for d in group.descriptors:
                d[attn.A_TILE] = group.tile_bytes
        layout = MemoryLayout(tuple(g.layout() for g in self.groups))
        self.identity += [(f"layout.{g.name}", g.layout_id) for g in layout.groups]
        return layout

    def _any(self, names: Sequence[str]) -> bool:
        return any(self.weights.has(name) for name in names)

    def _activation(self, x: Source, kind: int) -> int:
        """Address of `x` quantised to `kind`, emitting the op that makes it unless it is still there."""
        n_rows = self.options.n_ubatch if x.count == job.ROWS else self.options.max_outputs
        need = n_rows * act_bytes(kind, x.k)
        address, size = self._activations.get(kind, (0, 0))
        if size < need:
            address = self.arena.take(need)
            self._activations[kind] = (address, need)
            self._owner.pop(kind, None)
        if self._owner.get(kind) is not x:
            x.emit(kind, address)
            self._owner[kind] = x
        return address

    def _partials(self, group: int, kv_heads: int, dv: int, max_parts: int) -> int:
        need = attn.partial_bytes(self.options.max_runs, kv_heads, group, dv, max_parts)
        return self.buffer_bytes(f"partials{need}", need)

    def buffer_bytes(self, name: str, n_bytes: int) -> int:
        """Address of a named scratch area of `n_bytes`."""
        known = self._buffers.get(name)
        if known is None:
            known = self._buffers[name] = Rows(self.arena.take(n_bytes), n_bytes, n_bytes)
        return known.address
