"""DeepSeek V4: four residual streams, one row of keys that are values too, and three kinds of layers.

window      a query sees the last positions
ratio 4     and those `top_k` of the rows compressed from 4 positions each that an index picks
ratio 128   and all rows compressed from 128 positions each

Raw rows and what is not compressed yet live in rings; compressed rows are pure functions of the prefix, and
blocks. A block at the end may predict one token further (`build_draft`).

The published weights were trained with rows and the index rounded to 8 and 4 bits. No reference logits have
that, so it is off: an override ``deepseek4.activation_round_trips=bool:true`` turns it on, unverified.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile
from runtime.kernels.hyperconnect import STREAMS
from runtime.kernels.roundtrip import E2M1, E4M3, NONE, round_heads
from runtime.memory.layout import TILE
from runtime.models import blocks
from runtime.models import rope as turning
from runtime.models.hyper import MAX_LAYERS, Layer, n_nextn
from runtime.models.moe import SQRT_SOFTPLUS
from runtime.plan import grouped
from runtime.plan.builder import Plan
from runtime.plan.compress import Accumulator, compress
from runtime.plan.experts import Gating, expert_mlp, route, route_by_token
from runtime.plan.hyperconnect import HyperConnections, enter, leave, merge, previous, spread
from runtime.plan.indexer import select
from runtime.plan.latent import Keys, attend, paged_keys, ring_keys, store
from runtime.plan.values import Heads, LatentGroup, Rope, Rows, Source
from runtime.plan.weights import padded

WINDOW, OVERLAPPED, LONG = 0, 4, 128
"""Ratios: what kinds of layers there are."""

MAX_WIDTH = 1 << 16  # values of a head, positions of a window: beyond all sense
NO_LIMIT = 1e-6
"""Clamps up to this mean none."""


@dataclass(frozen=True, slots=True)
class Index:
    """What picks rows of layers with ratio 4."""

    n_head: int
    d: int
    top_k: int


@dataclass(frozen=True, slots=True)
class V4:
    """Sizes of the model, `ratios` and `limits` per layer; `d` values of a head, the last `n_rot` rotated.

    `drafter` is the block that predicts one token further, where there is one.
    """

    layers: tuple[Layer, ...]
    drafter: Layer | None
    ratios: tuple[int, ...]
    n_embd: int
    d: int
    n_rot: int
    q_rank: int
    window: int
    n_groups: int
    out_rank: int
    index: Index
    gating: Gating
    n_hashed: int
    n_shared: int
    limits: tuple[float, ...]
    shared_limits: tuple[float, ...]
    eps: float
    round_trips: bool = False

    @property
    def n_head(self) -> int:
        return self.layers[0].heads.n

    @classmethod
    def read(cls, f: ModelFile) -> "V4":
        """Errors: ModelError for numbers that are missing or make no sense."""
        key, where = f.arch_key, f.path.name
        n_stored = f.get_int(key("block_count"), low=1, high=MAX_LAYERS)
        n_layer, ratios = n_stored - n_predicting(f, n_stored), read_ratios(f, n_stored)
        n_head, d = f.get_int(key("attention.head_count"), low=1), f.get_int(key("attention.key_length"))
        n_kv, d_v = f.get_int(key("attention.head_count_kv")), f.get_int(key("attention.value_length"))
        if n_kv != 1 or d_v != d or not 1 <= d <= MAX_WIDTH:
            raise ModelError(f"{where}: {n_kv} rows of {d} keys and {d_v} values make no sense")
        n_groups = f.get_int(key("attention.output_group_count"), low=1)
        if n_head % n_groups:
            raise ModelError(f"{where}: {n_head} heads in {n_groups} groups make no sense")
        n_ff = f.get_ints(key("expert_feed_forward_length"), n_stored, low=1)
        limits = f.get_floats(key("swiglu_clamp_exp"), n_stored)
        stored = [Layer(i, f"blk.{i}.", Heads(n_head, 1, d, d), n_ff[i]) for i in range(n_stored)]
        self = cls(
            layers=tuple(stored[:n_layer]),
            drafter=stored[n_layer] if n_layer < n_stored else None,
            ratios=ratios[:n_layer],
            n_embd=f.get_int(key("embedding_length"), low=1),
            d=d,
            n_rot=turning.rotated(f, d),
            q_rank=f.get_int(key("attention.q_lora_rank"), low=1),
            window=f.get_int(key("attention.sliding_window"), low=1, high=MAX_WIDTH),
            n_groups=n_groups,
            out_rank=f.get_int(key("attention.output_lora_rank"), low=1),
            index=Index(*(f.get_int(key(f"attention.indexer.{n}"), low=1)
                          for n in ("head_count", "key_length", "top_k"))),
            gating=read_gating(f),
            n_hashed=f.get_int(key("hash_layer_count")),
            n_shared=f.get_int(key("expert_shared_count"), low=1),
            limits=limits,
            shared_limits=f.get_floats(key("swiglu_clamp_shexp"), n_stored, limits),
            eps=f.get_float(key("attention.layer_norm_rms_epsilon")),
            round_trips=f.get_bool(key("activation_round_trips"), default=False),
        )  # fmt: skip
        if self.index.d < self.n_rot:
            raise ModelError(
                f"{where}: an index of {self.index.d} values, {self.n_rot} of them rotated, makes no sense"
            )
        return self


def n_predicting(f: ModelFile, n_stored: int) -> int:
    """Blocks at the end that predict further tokens; files that only claim to have some have none."""
    n = n_nextn(f)
    return n if 0 < n < n_stored and f"blk.{n_stored - n}.nextn.eh_proj.weight" in f.tensors else 0


def read_ratios(f: ModelFile, n_stored: int) -> tuple[int, ...]:
    """Positions per compressed row of each block; entries beyond the blocks mean nothing.

    Errors: ModelError for too few of them or for one that no kind of layer has.
    """
    key = f.arch_key("attention.compress_ratios")
    array = f.get_array(key, np.ndarray)
    if array is None:
        raise ModelError(f"the model file has no {key}")
    if len(array) < n_stored:
        raise ModelError(f"{key} has {len(array)} elements for {n_stored} blocks")
    ratios = tuple(array[:n_stored].tolist())
    for ratio in ratios:
        if ratio not in (WINDOW, OVERLAPPED, LONG):
            raise ModelError(f"{key}: {ratio} is none of {WINDOW}, {OVERLAPPED} and {LONG}")
    return ratios


def read_gating(f: ModelFile) -> Gating:
    """Errors: UnsupportedModel for other experts' scores than this architecture's."""
    key = f.arch_key
    function = f.get_int(key("expert_gating_func"))
    if function != SQRT_SOFTPLUS:
        raise UnsupportedModel(f"{f.path.name}: expert_gating_func is {function}, not {SQRT_SOFTPLUS}")
    groups = f.get_int(key("expert_group_count"), default=0) or 1
    return Gating(
        n_expert=f.get_int(key("expert_count")),
        n_used=f.get_int(key("expert_used_count")),
        function=function,
        normalise=f.get_bool(key("expert_weights_norm")),
        scale=f.get_float(key("expert_weights_scale")),
        groups=groups,
        groups_used=f.get_int(key("expert_group_used_count"), default=0) or 1 if groups > 1 else 1,
    )


@dataclass(frozen=True, slots=True)
class Turns:
    """A rotation and the one that undoes it, with the frequencies of both."""

    there: Rope
    back: Rope
    frequencies: npt.NDArray[np.float64]

    @classmethod
    def by(cls, p: Plan, frequencies: Sequence[float]) -> "Turns":
        kept = p.arena.array((len(frequencies),), np.float64, "rope frequencies")
        kept[:] = frequencies
        back = p.rope([-f for f in frequencies], neox=False)
        return cls(p.rope(frequencies, neox=False), back, kept)


def rotations(p: Plan, m: V4) -> dict[int, Turns]:
    """By ratio. Layers that compress rotate everything as extended contexts do, without a magnitude."""
    f, scaling = p.file, turning.Scaling.read(p.file)
    plain = Turns.by(p, turning.frequencies(m.n_rot, turning.base_of(f)))
    if not any(m.ratios):
        return {WINDOW: plain}
    base = turning.base_of(f, "attention.compress_rope_freq_base")
    extended = Turns.by(p, scaling.frequencies(m.n_rot, base))
    return {WINDOW: plain, OVERLAPPED: extended, LONG: extended}


@dataclass(frozen=True, slots=True)
class Compressed:
    """Compressed rows of a layer and what makes them."""

    keys: Keys
    accumulator: Accumulator


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """What one layer remembers."""

    raw: Keys
    compressed: Compressed | None
    index: Compressed | None


class Memory:
    """Rings and cache groups, in which each layer in turn gets its place."""

    def __init__(self, p: Plan, m: V4) -> None:
        self._p, self._m = p, m
        ratios = sorted(set(m.ratios) - {WINDOW})
        self._raw = p.tail.ring("raw", back=m.window - 1)
        self._rings = {
            ratio: p.tail.ring(f"compressing {ratio}", period=ratio, back=ratio if ratio == OVERLAPPED else 0)
            for ratio in ratios
        }
        self._groups = {ratio: self._group(f"compressed {ratio}", ratio) for ratio in ratios}
        if OVERLAPPED in ratios:
            self._index = self._group("index", OVERLAPPED, plain_type(p.options.key_type))

    def layer(self, ratio: int) -> LayerMemory:
        m, options = self._m, self._p.options
        raw = ring_keys(self._p, self._raw, m.d, m.window, options.key_type)
        compressed = self._compressed(self._groups[ratio], ratio, m.d) if ratio else None
        index = self._compressed(self._index, ratio, m.index.d) if ratio == OVERLAPPED else None
        return LayerMemory(raw, compressed, index)

    def streams(self) -> Keys:
        """A step's streams and those of the position before it, for a drafter."""
        return ring_keys(self._p, self._p.tail.ring("streams", back=1), STREAMS * self._m.n_embd, 1)

    def _group(self, name: str, ratio: int, kind: str = "") -> LatentGroup:
        return self._p.latent_group(name, ratio=ratio, tile_rows=max(1, TILE // ratio), kind=kind)

    def _compressed(self, group: LatentGroup, ratio: int, d: int) -> Compressed:
        accumulator = Accumulator.of(self._rings[ratio], d, ratio, overlaps=ratio == OVERLAPPED)
        return Compressed(paged_keys(self._p, group, d), accumulator)


def plain_type(key_type: str) -> str:
    """The cache type of the index's rows: quantised ones would choose other rows."""
    return key_type if key_type in ("f32", "f16", "bf16") else "f16"


def attention(p: Plan, m: V4, memory: LayerMemory, turns: Turns, n: str, x: Rows) -> Rows:
    """What the layer whose tensors' names begin with `n` attends to."""
    h = p.rms_norm(x, f"{n}attn_norm", m.eps)
    low = p.matmul(h, [f"{n}attn_q_a", f"{n}attn_kv"], "low", widths=[m.q_rank, m.d])
    qr = p.rms_norm(low.columns(0, m.q_rank), f"{n}attn_q_a_norm", m.eps)
    q = p.matmul(qr, [f"{n}attn_q_b"], "q", widths=[m.n_head * m.d])
    p.head_norm(q, m.n_head, m.d, 0, 0, m.eps)
    p.rotate_columns(q, m.d - m.n_rot, m.n_head, turns.there)
    row = low.columns(padded(m.q_rank), m.d)
    p.head_norm(row, 1, m.d, 0, 0, m.eps, f"{n}attn_kv_a_norm")
    p.rotate_columns(row, m.d - m.n_rot, 1, turns.there)
    if m.round_trips:
        p.op(round_heads, row.address, row.ld, 1, m.d, m.d - m.n_rot, E4M3)
    store(p, memory.raw, row)
    keys = [memory.raw]
    if memory.compressed is not None:
        keys.append(memory.compressed.keys)
        pool(p, m, memory.compressed, turns, f"{n}attn_compressor", h, E4M3)
    if memory.index is not None:
        pool(p, m, memory.index, turns, f"{n}indexer_compressor", h, E2M1)
        pick_rows(p, m, memory.index.keys, keys[1], turns, n, h, qr)
    out = attend(p, q, m.n_head, m.d, keys, scale=m.d**-0.5, sinks=f"{n}attn_sinks")
    p.rotate_columns(out, m.d - m.n_rot, m.n_head, turns.back)
    width = m.n_head // m.n_groups * m.d
    a = p.weights.grouped_panels(f"{n}attn_output_a.weight", width, m.out_rank, m.n_groups)
    y = p.buffer("grouped", m.n_groups * m.out_rank)
    grouped.matmul(p, out, width, a, m.n_groups, y)
    return p.matmul(y, [f"{n}attn_output_b"], "y", widths=[m.n_embd])


def pool(p: Plan, m: V4, rows: Compressed, turns: Turns, name: str, h: Source, rounding: int) -> None:
    compress(p, h, name, rows.accumulator, rows.keys, turns.frequencies, m.eps,
             rounding if m.round_trips else NONE)  # fmt: skip


def pick_rows(p: Plan, m: V4, index: Keys, keys: Keys, turns: Turns, n: str, h: Source, qr: Source) -> None:
    """Queries see those rows of `keys` only whose rows of `index` match best."""
    q = p.matmul(qr, [f"{n}indexer.attn_q_b"], "index q", widths=[m.index.n_head * m.index.d])
    p.rotate_columns(q, m.index.d - m.n_rot, m.index.n_head, turns.there)
    if m.round_trips:
        p.op(round_heads, q.address, q.ld, m.index.n_head, m.index.d, m.index.d, E2M1)
    weights = p.matmul(h, [f"{n}indexer.proj"], "index weights", widths=[m.index.n_head])
    select(p, keys, index, q, weights, m.index.n_head, m.index.top_k)


def experts(p: Plan, m: V4, layer: Layer, x: Rows) -> Rows:
    n, limit, shared_limit = layer.prefix, m.limits[layer.index], m.shared_limits[layer.index]
    h = p.keep(p.rms_norm(x, f"{n}ffn_norm", m.eps))
    y = blocks.feed_forward(p, layer, h, activation=activation(shared_limit), limit=shared_limit,
                            n_ff=m.n_shared * layer.n_ff, suffix="_shexp")  # fmt: skip
    logits = p.matmul(h, [f"{n}ffn_gate_inp"], "router", widths=[m.gating.n_expert])
    if layer.index < m.n_hashed:
        routing = route_by_token(p, logits, m.gating, f"{n}ffn_gate_tid2eid")
    else:
        routing = route(p, logits, m.gating, bias=f"{n}exp_probs_b.bias")
    expert_mlp(p, h, routing, [f"{n}ffn_gate_exps", f"{n}ffn_up_exps"], f"{n}ffn_down_exps", layer.n_ff, y,
               activation=activation(limit), limit=limit)  # fmt: skip
    return y


def activation(limit: float) -> str:
    return "silu-gate-clamped" if limit > NO_LIMIT else "silu-gate"


def write(source: Source, out: Rows) -> None:
    assert source.keep is not None
    source.keep(out)


class Network:
    """The model while its plan is written."""

    def __init__(self, p: Plan) -> None:
        self.p, self.m = p, V4.read(p.file)
        self.hc = HyperConnections.read(p.file, self.m.n_embd, self.m.eps)
        self.memory, self.turns = Memory(p, self.m), rotations(p, self.m)
        p.families.add("deepseek4")

    def trunk(self) -> Rows:
        """The streams after all layers."""
        streams = spread(self.p, self.hc, self.p.embedding("token_embd", self.m.n_embd))
        for layer in self.m.layers:
            self.block(layer, self.m.ratios[layer.index], streams)
        return streams

    def block(self, layer: Layer, ratio: int, streams: Rows) -> None:
        p, n = self.p, layer.prefix
        p.weights.ignore(f"{n}exp_probs_b_vl.bias")
        x, gates = enter(p, self.hc, streams, f"{n}hc_attn")
        y = attention(p, self.m, self.memory.layer(ratio), self.turns[ratio], n, x)
        leave(p, self.hc, streams, gates, y)
        x, gates = enter(p, self.hc, streams, f"{n}hc_ffn")
        leave(p, self.hc, streams, gates, experts(p, self.m, layer, x))

    def draft(self, layer: Layer, streams: Rows) -> None:
        """Streams of the position before and this one's token become those that predict the next token."""
        p, n, d = self.p, layer.prefix, self.m.n_embd
        before = previous(p, self.memory.streams(), streams)
        own = f"{n}nextn.embed_tokens"
        n_vocab = p.n_vocab
        x = p.embedding(own if p.weights.has(f"{own}.weight") else "token_embd", d)
        if p.n_vocab != n_vocab:
            raise ModelError(f"{p.file.path.name}: {own} and the token embedding differ in rows")
        joined = p.buffer("joined", 2 * d)
        write(p.rms_norm(x, f"{n}nextn.enorm", self.m.eps), joined.columns(0, d))
        for s in range(STREAMS):
            hidden = p.rms_norm(before.columns(s * d, d), f"{n}nextn.hnorm", self.m.eps)
            write(hidden, joined.columns(d, d))
            u = p.matmul(joined, [f"{n}nextn.eh_proj"], "y", widths=[d])
            grouped.copy(p, u, 0, d, 1, streams.columns(s * d, d), 0)
        self.block(layer, WINDOW, streams)

    def readout(self, streams: Rows, norm: str = "output_norm", head: str = "output") -> None:
        p = self.p
        last = merge(p, self.hc, streams if p.options.embeddings else p.wanted(streams), "output_hc")
        h = p.rms_norm(last, norm, self.m.eps)
        if p.options.embeddings:
            p.hidden_states(p.keep(h))
        else:
            p.head(h, head)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    network = Network(p)
    network.readout(network.trunk())


def build_draft(p: Plan) -> None:
    """Write the pass into `p` whose logits at a position are those of the token after the next one.

    Errors: UnsupportedModel for a file without the block for that.
    """
    network = Network(p)
    layer = network.m.drafter
    if layer is None:
        raise UnsupportedModel(f"{p.file.path.name}: has no block that predicts a further token")
    streams = network.trunk()
    network.draft(layer, streams)
    norm, head = f"{layer.prefix}nextn.shared_head_norm", f"{layer.prefix}nextn.shared_head_head"
    network.readout(
        streams,
        norm if p.weights.has(f"{norm}.weight") else "output_norm",
        head if p.weights.has(f"{head}.weight") else "output",
    )
