"""The plan of a model: a flat list of ops over named buffers, written by a model file as its forward pass.

A model file calls the methods of `Plan` in the order of the computation. Values it handles are `Rows` (an f32
buffer of one row per token) and `Source` (rows that exist only quantised: what feeds a matmul). A source is
quantised when a matmul asks for it and its tiles are not there any more, in the op that produces it: so what
it is made of must not have changed by then, else `keep` it first.

Tensors are named without their ending: ``.weight`` is added, and a ``.bias`` beside it is used where there is
one. Norms may be stored without the ending, too, as those of Falcon H1 are.
"""

import ctypes
from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile
from runtime.kernels import activations, job, norms, positions
from runtime.kernels import attention_layer as al
from runtime.kernels import rows as ops
from runtime.kernels.dequant import EMBED
from runtime.kernels.formats import FORMATS
from runtime.kernels.job import f32_bits
from runtime.kernels.kvtypes import KV_TYPES
from runtime.kernels.quantise import act_bytes
from runtime.kernels.rope import NEOX, NORM, rope_table
from runtime.kernels.simd import LANES
from runtime.kernels.tape import Native, Op
from runtime.memory.layout import BLOCK, TILE, MemoryLayout
from runtime.plan.arena import Arena
from runtime.plan.options import PlanOptions
from runtime.plan.tail import TailPlan
from runtime.plan.values import CacheGroup, Heads, LatentGroup, Rope, Rows, Source
from runtime.plan.weights import Weights, padded

GroupT = TypeVar("GroupT", CacheGroup, LatentGroup)

ACTIVATIONS = {
    "silu-gate": activations.SILU_GATE,
    "gelu-gate": activations.GELU_GATE,
    "silu-gate-capped": activations.SILU_GATE_CAPPED,
    "silu-gate-clamped": activations.SILU_GATE_CLAMPED,
    "sigmoid-gate-capped": activations.SIGMOID_GATE_CAPPED,
    "gelu": activations.GELU,
    "relu-squared": activations.RELU_SQUARED,
    "tanh": activations.TANH,
    "sigmoid": activations.SIGMOID,
}
"""Names of what `runtime.kernels.activations` computes."""


class Plan:
    """Ops of one model for one set of sizes. Model files see the methods, the executor reads the rest.

    `families` are the kernel families, by their names in `runtime.model.NUMERICS`, whose arithmetic decides
    the bytes of its state. A `Native` among the parameters of an op stands for its address; in `functions`
    are the words of descriptors that hold such addresses: (array, index, native).
    """

    def __init__(self, file: ModelFile, weights: Weights, arena: Arena, options: PlanOptions) -> None:
        self.file = file
        self.weights = weights
        self.options = options
        self.arena = arena
        self.tape: list[list[int | Native]] = []
        self.ops: list[Op] = []
        self.groups: list[CacheGroup | LatentGroup] = []
        self.tail = TailPlan(options.n_ubatch)
        self.families = {"dense-attention"}
        self.n_vocab = 0
        self.result = Rows(0, 0, 0)
        self.identity: list[tuple[str, str | int | float]] = []
        self.tokens = arena.array((options.n_ubatch,), np.int32, "token ids")
        self.functions: list[tuple[npt.NDArray[np.int64], int, Native]] = []
        self._buffers: dict[tuple[str, int, int], Rows] = {}
        self._areas: dict[str, tuple[int, int]] = {}
        self._owner: dict[int, Source] = {}

    def op(self, op: Op, *params: int | Native) -> None:
        """Append an op; compiles nothing yet."""
        self.ops.append(op)
        self.tape.append(list(params))

    def buffer(self, name: str, width: int, count: int = job.ROWS) -> Rows:
        """The f32 buffer of that name and width, made on first use; layers share it by its name."""
        key = name, width, count
        if key not in self._buffers:
            ld = 4 * padded(width)
            self._buffers[key] = Rows(self.arena.take(self.n_rows(count) * ld, name), ld, width, count)
        return self._buffers[key]

    def area(self, name: str, n_bytes: int) -> int:
        """Address of scratch of that name; what asked for less before keeps its own."""
        address, size = self._areas.get(name, (0, 0))
        if size < n_bytes:
            address = self.arena.take(n_bytes, name)
            self._areas[name] = address, n_bytes
        return address

    def embedding(self, name: str, width: int, scale: float = 1.0, out: Rows | None = None) -> Rows:
        """scale * rows of the table at the step's tokens, in `out` or the buffer x."""
        table = self.weights.table(f"{name}.weight", width)
        x = out or self.buffer("x", width)
        self.n_vocab = min(table.rows, self.n_vocab or table.rows)
        self.op(EMBED[table.type_name], table.address, table.row_bytes, table.k, self.tokens.ctypes.data,
                x.address, x.ld, f32_bits(scale), x.count)  # fmt: skip
        return x

    def add_positions(self, x: Rows, name: str) -> None:
        """x += the table's row at each position. Errors: UnsupportedModel for a context beyond the table."""
        table = self.weights.matrix(f"{name}.weight", x.width)
        if self.options.n_ctx > len(table):
            raise UnsupportedModel(
                f"{self.file.path.name}: knows {len(table)} positions, not the {self.options.n_ctx} asked for"
            )
        lines = self.arena.array((-(-len(table) // BLOCK) * BLOCK, padded(x.width)), np.float32, name)
        lines[: len(table), : x.width] = table
        self.op(positions.add_positions, x.address, x.ld, lines.ctypes.data, padded(x.width))

    def add_line(self, x: Rows, name: str, index: int) -> None:
        """x += the table's row `index`, the same for all. Errors: ModelError when there is none."""
        table = self.weights.matrix(f"{name}.weight", x.width)
        if index >= len(table):
            raise ModelError(f"{self.file.path.name}: {name} has {len(table)} rows, no row {index}")
        line = self.arena.array((padded(x.width),), np.float32, name)
        line[: x.width] = table[index]
        self.op(ops.add_rows, x.address, x.ld, line.ctypes.data, 0, padded(x.width), f32_bits(1.0), x.count)

    def rms_norm(self, x: Rows, name: str, eps: float) -> Source:
        return self._norm(x, name, eps, norms.RMS)

    def layer_norm(self, x: Rows, name: str, eps: float) -> Source:
        return self._norm(x, name, eps, norms.LAYER)

    def rms_norm_add(self, x: Rows, name: str, eps: float, residual: Rows) -> None:
        """residual += rms_norm(x). Errors: ModelError for rows of other widths."""
        self._check_sum(x, residual)
        w = self.weights.vector(f"{name}.weight", widths=[x.width])
        self.op(
            norms.norm_add, x.address, x.ld, w, x.width, f32_bits(eps), residual.address, residual.ld, x.count
        )

    def head_norm(self, qkv: Rows, q_heads: int, q_width: int, k_heads: int, k_width: int, eps: float,
                  q_name: str = "", k_name: str = "") -> None:  # fmt: skip
        """RMS norm of every query and key head, in place; without names there are no weights."""
        wq, wk = self._head_weight(q_name, q_width), self._head_weight(k_name, k_width)
        self.op(norms.head_norm, qkv.address, qkv.ld, q_heads, q_width, wq, k_heads, k_width, wk,
                f32_bits(eps), qkv.count)  # fmt: skip

    def rows(self, x: Rows) -> Source:
        """Plain rows as the input of a matmul."""

        def emit(kind: int, dst: int) -> None:
            self.op(ops.quant, x.address, x.ld, x.width, dst, kind, x.count)

        return Source(x.width, x.count, emit)

    def keep(self, source: Source, name: str = "kept") -> Rows:
        """The source as rows, which stay when what it was made of changes."""
        assert source.keep is not None
        out = self.buffer(name, source.k, source.count)
        source.keep(out)
        return out

    def activated(self, x: Rows, n: int, activation: str, limit: float = 0.0) -> Source:
        """One of `ACTIVATIONS`, of rows of `n` values or of `n` gates up to a whole panel and `n` values."""
        kind = ACTIVATIONS[activation]

        def emit(act_kind: int, dst: int) -> None:
            self.op(activations.activate_quant, x.address, x.ld, 4 * padded(n), n, kind, f32_bits(limit), dst,
                    act_kind, x.count)  # fmt: skip

        return Source(n, x.count, emit, narrow=True)

    def matmul(
        self, x: Source | Rows, names: Sequence[str], out: str, *, residual: Rows | None = None,
        scale: float = 1.0, widths: Sequence[int] = (), narrow: bool = False,
    ) -> Rows:  # fmt: skip
        """out = x . [W0 | W1 | ...] + biases, each part starting at a multiple of 16 columns.

        With `residual`, `scale` times the result is added to it, and `out` only names scratch.
        `widths` are checked where given. The rows of a `narrow` product, of float weights, may have any
        width. Errors: ModelError for shapes that do not fit.
        """
        source = self.rows(x) if isinstance(x, Rows) else x
        alike = residual.width if residual is not None else None
        expected: Sequence[int | None] = widths or [alike] * len(names)
        tensors = [
            self.weights.matrix_info(f"{name}.weight", source.k, n, narrow=narrow or source.narrow)
            for name, n in zip(names, expected, strict=True)
        ]
        found = [t.shape[1] for t in tensors]
        y = self.buffer(out, sum(map(padded, found[:-1])) + found[-1], source.count)
        biases = [f"{name}.bias" for name in names]
        biased = any(map(self.weights.has, biases))
        add = residual if not biased and scale == 1.0 else None
        column = 0
        for type_name, group in groupby(tensors, key=lambda t: t.type.name):
            act = self._activation(source, FORMATS[type_name].act_kind)
            for part in self.weights.panels([t.name for t in group]):
                self.op(part.op, part.address, part.rows // LANES, act, part.k, y.address + 4 * column, y.ld,
                        add.address + 4 * column if add else 0, y.count, *part.op_params)  # fmt: skip
                column += part.rows
        if biased:
            bias = self.weights.vector(*biases, widths=found)
            self.op(ops.add_rows, y.address, y.ld, bias, 0, column, f32_bits(1.0), y.count)
        if residual is not None and add is None:
            self.add(y, residual, scale)
        return y

    def add(self, y: Rows, residual: Rows, scale: float = 1.0) -> None:
        """residual += scale * y. Errors: ModelError for rows of other widths."""
        self._check_sum(y, residual)
        self.op(
            ops.add_rows,
            residual.address,
            residual.ld,
            y.address,
            y.ld,
            padded(y.width),
            f32_bits(scale),
            y.count,
        )

    def scale(self, x: Rows, factor: float, softcap: float = 0.0) -> None:
        """x *= factor, then x = softcap * tanh(x / softcap) where there is one"""
        self.op(
            ops.shape_logits, x.address, x.ld, padded(x.width), f32_bits(factor), f32_bits(softcap), x.count
        )

    def _check_sum(self, y: Rows, residual: Rows) -> None:
        if y.width != residual.width:
            raise ModelError(
                f"{self.file.path.name}: rows of {y.width} values cannot be added to rows of {residual.width}"
            )

    def clear(self, x: Rows) -> None:
        """x = 0"""
        self.op(ops.clear_rows, x.address, x.ld, padded(x.width), x.count)

    def add_gated(self, y: Rows, residual: Rows, x: Rows, gate: str) -> None:
        """residual += sigmoid(x . gate) * y, one gate per row. Errors: ModelError for other widths."""
        self._check_sum(y, residual)
        w = self.weights.vector(f"{gate}.weight", widths=[x.width])
        self.op(ops.add_gated, residual.address, residual.ld, y.address, y.ld, y.width, x.address, x.ld, w,
                x.width, y.count)  # fmt: skip

    def gate_heads(self, x: Rows, heads: int, gates: Rows) -> None:
        """Each of the heads of a row times the sigmoid of its gate, in place."""
        self.op(ops.gate_heads, x.address, x.ld, heads, x.width // heads, gates.address, gates.ld, x.count)

    def rope(self, frequencies: Sequence[float], *, neox: bool, magnitude: float = 1.0) -> Rope:
        """A rotation by ``position * frequencies[i]`` of pair i; its table is made once per step."""
        table = self.arena.array((len(frequencies),), np.float64, "rope frequencies")
        table[:] = frequencies
        n = 2 * len(frequencies)
        ld = 8 * n
        out = self.arena.take(self.options.n_ubatch * ld, "rope table")
        pairing = NEOX if neox else NORM
        self.op(rope_table, table.ctypes.data, len(frequencies), pairing, f32_bits(magnitude), out, ld)
        digest = ",".join(f.hex() for f in map(float, frequencies))
        self.identity.append((f"rope{sum(n.startswith('rope') for n, _ in self.identity)}",
                              f"{'neox' if neox else 'norm'}:{magnitude!r}:{digest}"))  # fmt: skip
        return Rope(out, ld, n, pairing)

    def rotate_columns(self, x: Rows, first: int, groups: int, rope: Rope) -> None:
        """Rotate columns from `first` on of each of the groups that x is cut into, in place."""
        assert first + rope.n_rot <= x.width // groups
        self.op(positions.rotate_heads, x.address + 4 * first, x.ld, groups, x.width // groups, rope.address,
                rope.ld, rope.n_rot, rope.pairing)  # fmt: skip

    def rotate(self, qkv: Rows, heads: Heads, rope: Rope) -> None:
        """Rotate queries and keys now, for what comes between that and attention, which then gets no rope."""
        self.op(positions.rotate_heads, qkv.address, qkv.ld, heads.n + heads.n_kv, heads.d_k, rope.address,
                rope.ld, rope.n_rot, rope.pairing)  # fmt: skip

    def temper_queries(self, qkv: Rows, heads: Heads, scale: float, length: int, offset: int = 0) -> None:
        """q *= 1 + scale * ln(1 + floor((position + offset) / length))"""
        self.op(
            positions.temper_queries,
            qkv.address,
            qkv.ld,
            heads.n * heads.d_k,
            f32_bits(scale),
            length,
            offset,
        )

    def cache_group(self, name: str, window: int = 0, mask: int = al.CAUSAL) -> CacheGroup:
        """A group of layers with the same mask and window (0: no limit).

        A causal mask becomes a symmetric one where the file says that attention is not causal.
        """
        if mask == al.CAUSAL and not self.file.get_bool(self.file.arch_key("attention.causal"), default=True):
            if window:
                raise UnsupportedModel(f"{self.file.path.name}: windows need attention that is causal")
            mask = al.SYMMETRIC
        cache = f"{self.options.key_type}/{self.options.value_type}"
        return self._add_group(CacheGroup(name, len(self.groups), mask, window, cache))

    def latent_group(
        self, name: str, *, ratio: int = 1, tile_rows: int = TILE, kind: str = ""
    ) -> LatentGroup:
        """A group of layers with a row of shared keys for every `ratio` positions (see `plan.latent`).

        `tile_rows` rows of a layer lie together. `kind` is the cache type, by default that of keys. Such keys
        are not rotated by Hadamard matrices. Errors: UnsupportedModel for attention that is not causal.
        """
        if not self.file.get_bool(self.file.arch_key("attention.causal"), default=True):
            raise UnsupportedModel(f"{self.file.path.name}: shared keys need attention that is causal")
        assert BLOCK % (ratio * tile_rows) == 0
        kv = KV_TYPES[kind or self.options.key_type]
        return self._add_group(LatentGroup(name, len(self.groups), kv, ratio, tile_rows))

    def _add_group(self, group: GroupT) -> GroupT:
        assert group.index < job.MAX_GROUPS
        self.groups.append(group)
        return group

    def wanted(self, x: Rows) -> Rows:
        """The rows that want logits."""
        last = self.buffer("wanted", x.width, job.OUT_ROWS)
        self.op(ops.gather_out, x.address, x.ld, x.width, last.address, last.ld)
        return last

    def head(self, x: Source, name: str, *, scale: float = 1.0, softcap: float = 0.0) -> None:
        """logits = softcap(scale * (x . head)), for a source made from the rows that want them."""
        if self.weights.matrix_info(f"{name}.weight", x.k).shape[1] != self.n_vocab:
            raise ModelError(f"{self.file.path.name}: {name} and the token embedding differ in rows")
        self.result = logits = self.matmul(x, [name], "logits")
        if softcap or scale != 1.0:
            self.op(ops.shape_logits, logits.address, logits.ld, padded(self.n_vocab),
                    f32_bits(scale), f32_bits(softcap), job.OUT_ROWS)  # fmt: skip

    def hidden_states(self, x: Rows) -> None:
        """The plan ends with these rows, of every token."""
        self.result = x

    def result_array(self) -> npt.NDArray[np.float32]:
        """Where the results are: float32 [rows, n_vocab or n_embd rounded up to panels].

        Logits have `max_outputs` rows, hidden states `n_ubatch`.
        """
        shape = (self.n_rows(self.result.count), self.result.ld // 4)
        floats = (ctypes.c_float * (shape[0] * shape[1])).from_address(self.result.address)
        return np.frombuffer(memoryview(floats), np.float32).reshape(shape)

    def finish(self) -> MemoryLayout:
        """Fill in what only all layers together tell. Errors: UnsupportedModel for unused tensors."""
        self.weights.check_used()
        while self.groups and not self.groups[-1].layers:
            self.groups.pop()
        for group in self.groups:
            group.finish()
        layout = MemoryLayout(tuple(g.layout() for g in self.groups), self.tail.layout())
        self.identity += [(f"layout.{g.name}", g.layout_id) for g in layout.groups]
        if layout.tail is not None:
            self.identity += [(f"layout.{part.name}", part.layout_id) for part in layout.tail.layouts]
        return layout

    def n_rows(self, count: int) -> int:
        return self.options.n_ubatch if count == job.ROWS else self.options.max_outputs

    def _norm(self, x: Rows, name: str, eps: float, kind: int) -> Source:
        w = self.weights.vector(name if self.weights.has(name) else f"{name}.weight", widths=[x.width])
        bias = (
            self.weights.vector(f"{name}.bias", widths=[x.width]) if self.weights.has(f"{name}.bias") else 0
        )
        params = x.address, x.ld, w, bias, x.width, f32_bits(eps), kind

        def emit(act_kind: int, dst: int) -> None:
            self.op(norms.norm_quant, *params, dst, act_kind, x.count)

        def keep(out: Rows) -> None:
            self.op(norms.norm_rows, *params, out.address, out.ld, x.count)

        return Source(x.width, x.count, emit, keep)

    def _head_weight(self, name: str, width: int) -> int:
        return self.weights.vector(f"{name}.weight", widths=[width]) if name else self.weights.ones(width)

    def _activation(self, x: Source, kind: int) -> int:
        """Address of `x` quantised to `kind`, emitting the op that makes it unless it is still there."""
        name = f"activation {kind}"
        before = self._areas.get(name)
        address = self.area(name, self.n_rows(x.count) * act_bytes(kind, x.k))
        if self._areas[name] != before or self._owner.get(kind) is not x:
            x.emit(kind, address)
            self._owner[kind] = x
        return address
