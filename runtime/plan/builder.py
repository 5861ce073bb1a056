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
from runtime.kernels import attention_layer as al
from runtime.kernels import job
from runtime.kernels import rows as ops
from runtime.kernels import rows as ops
from runtime.kernels.dequant import EMBED
from runtime.kernels.formats import FORMATS
from runtime.kernels.job import f32_bits
from runtime.kernels.kvtypes import KV_TYPES, KVType
from runtime.kernels.matmul import MATMUL
from runtime.kernels.quantise import act_bytes
from runtime.kernels.kvstore import rotate_and_store, rotate_back
from runtime.kernels.rope import NEOX, NORM, rope_table
from runtime.kernels.simd import LANES
from runtime.kernels.tape import Op
from runtime.memory.layout import BLOCK, TILE, GroupLayout, MemoryLayout
from runtime.kernels import job
from runtime.plan.arena import Arena
from runtime.plan.weights import Weights, padded


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Sizes that a plan is built for. `n_ctx` is the context of one sequence in tokens.

    `rotate_k` and `rotate_v` Hadamard-rotate heads before they are stored.
    """

    n_ctx: int
    n_ubatch: int
    max_runs: int
    max_outputs: int
    key_type: str = "f16"
    value_type: str = "f16"
    rotate_k: bool = False
    rotate_v: bool = False

    @property
    def cache(self) -> str:
        """Everything about the cache types that decides stored bytes."""
        return f"{self.key_type}{'h' * self.rotate_k}/{self.value_type}{'h' * self.rotate_v}"


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
    """Layers that share block tables and a mask. Layers are added as the plan meets them."""

    name: str
    index: int
    mask: int
    window: int
    cache: str
    tile_bytes: int = 0
    shapes: list[tuple[int, int, int]] = field(default_factory=list)
    layers: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add_layer(self, layer: npt.NDArray[np.int64], kv_heads: int, dk: int, dv: int, tile_bytes: int) -> None:
        self.layers.append(layer)
        self.shapes.append((kv_heads, dk, dv))
        self.tile_bytes += tile_bytes

    def layout(self) -> GroupLayout:
        runs = (f"{len(list(g))}x{s[0]}h{s[1]}k{s[2]}v" for s, g in groupby(self.shapes))
        layout_id = f"gqa-tile16-v1:{self.cache}:{'+'.join(runs)}:m{self.mask}w{self.window}"
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
        self.cache_functions: list[tuple[npt.NDArray[np.int64], KVType, KVType]] = []

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

    def cache_group(self, name: str, window: int = 0, mask: int = al.CAUSAL) -> CacheGroup:
        """A group of layers with the same mask and window (0: no limit)."""
        group = CacheGroup(name, len(self.groups), mask, window, self.options.cache)
        assert group.index < job.MAX_GROUPS
        self.groups.append(group)
        return group

    def attention(
        self, qkv: Rows, group: CacheGroup, heads: int, kv_heads: int, dk: int, dv: int, rope: Rope | None,
        scale: float, *, softcap: float = 0.0, sinks: str = "",
    ) -> Rows:  # fmt: skip
        """Rotate and store this layer's keys and values, then attend; `qkv` rows are q, k, v heads in a row.

        `sinks` names a tensor of one logit per head. Returns rows of ``heads * dv``.
        """
        key_type, value_type = KV_TYPES[self.options.key_type], KV_TYPES[self.options.value_type]
        self._check_heads(heads, kv_heads, dk, dv, key_type, value_type)
        out = self.buffer("attention", heads * dv)
        k_bytes, v_bytes = TILE * key_type.row_bytes(dk), TILE * value_type.row_bytes(dv)
        max_parts = -(-self.options.n_ctx // BLOCK)
        rotate = (al.ROTATE_K if self.options.rotate_k else 0) | (al.ROTATE_V if self.options.rotate_v else 0)
        layer = al.descriptor(self.arena.array((al.A_WORDS,), np.int64), {
            al.A_X: qkv.address, al.A_LDX: qkv.ld, al.A_OUT: out.address, al.A_LDO: out.ld,
            al.A_BASE: group.tile_bytes, al.A_GROUP: group.index,
            al.A_HEADS: heads, al.A_KV_HEADS: kv_heads, al.A_DK: dk, al.A_DV: dv,
            al.A_MASK: group.mask, al.A_WINDOW: group.window,
            al.A_SCALE: f32_bits(scale), al.A_SOFTCAP: f32_bits(softcap),
            al.A_SINKS: self.weights.vector(sinks, widths=[heads]) if sinks else 0,
            al.A_PARTIALS: self._partials(heads // kv_heads, kv_heads, dv, max_parts), al.A_MAX_PARTS: max_parts,
            al.A_ROPE: rope.address if rope else 0, al.A_LD_ROPE: rope.ld if rope else 0,
            al.A_N_ROT: rope.n_rot if rope else 0, al.A_PAIRING: rope.pairing if rope else 0,
            al.A_ROTATE: rotate, al.A_K_BYTES: k_bytes, al.A_V_BYTES: v_bytes,
        })  # fmt: skip
        group.add_layer(layer, kv_heads, dk, dv, kv_heads * (k_bytes + v_bytes))
        self.cache_functions.append((layer, key_type, value_type))
        at = layer.ctypes.data
        self.op(rotate_and_store, at)
        self.op(attn.attention(key_type.name, value_type.name), at)
        self.op(attn.attention_combine, at)
        if self.options.rotate_v:
            self.op(rotate_back, at)
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
            for layer in group.layers:
                layer[al.A_TILE] = group.tile_bytes
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

    def _check_heads(self, heads: int, kv_heads: int, dk: int, dv: int, keys: KVType, values: KVType) -> None:
        where = self.file.path.name
        if dk % LANES or dv % LANES or heads % kv_heads:
            raise UnsupportedModel(f"{where}: heads of {dk} and {dv} values, {heads} over {kv_heads}, are not supported")
        if dk % keys.block or dv % values.block:
            raise UnsupportedModel(
                f"{where}: cache types {keys.name}/{values.name} need heads of a multiple of 32 values, not {dk}/{dv}"
            )

    def _partials(self, group: int, kv_heads: int, dv: int, max_parts: int) -> int:
        need = attn.partial_bytes(self.options.max_runs, kv_heads, group, dv, max_parts)
        return self.buffer_bytes(f"partials{need}", need)

    def buffer_bytes(self, name: str, n_bytes: int) -> int:
        """Address of a named scratch area of `n_bytes`."""
        known = self._buffers.get(name)
        if known is None:
            known = self._buffers[name] = Rows(self.arena.take(n_bytes), n_bytes, n_bytes)
        return known.address
