"""DeepSeek V4 in float64 numpy, one token at a time, written from the architecture's description alone.

Names follow the description: D width, H heads of d values, N streams of the hyper-connections. Each method is
one rule of it, so that a test can replace a rule by the mistake that is nearest to it.
"""

import copy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf.quants import dequantize

from runtime.gguf import open_model

Array = np.ndarray


def rms(x: Array, eps: float, weight: Array | float = 1.0) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def turn(x: Array, frequencies: Array, position: float) -> Array:
    """Rotate adjacent pairs of the last dims of each head."""
    n_rot = 2 * len(frequencies)
    c, s = np.cos(position * frequencies), np.sin(position * frequencies)
    out = x.copy()
    a, b = x[..., -n_rot::2], x[..., 1 - n_rot :: 2]
    out[..., -n_rot::2], out[..., 1 - n_rot :: 2] = a * c - b * s, a * s + b * c
    return out


class Accumulator:
    """Rows of values and scores of the last positions, by ``position % n``."""

    def __init__(self, n: int, width: int) -> None:
        self.values, self.scores = np.zeros((n, width)), np.zeros((n, width))

    def put(self, p: int, value: Array, score: Array) -> None:
        self.values[p % len(self.values)], self.scores[p % len(self.values)] = value, score

    def get(self, first: int, n: int) -> tuple[Array, Array]:
        at = np.arange(first, first + n) % len(self.values)
        return self.values[at], self.scores[at]


@dataclass
class LayerState:
    """What a layer remembers: a ring of raw rows, compressed rows, accumulators of those to come."""

    raw: Array
    rows: list[Array] = field(default_factory=list)
    index_rows: list[Array] = field(default_factory=list)
    accumulator: Accumulator | None = None
    index_accumulator: Accumulator | None = None


class Reference:
    """A model file and one sequence; `feed` appends a token."""

    def __init__(self, path: Path) -> None:
        self.file = f = open_model(path)
        key = f.arch_key
        self.tensors: dict[str, Array] = {}
        self.n_stored = f.get_int(key("block_count"))
        self.n_layer = self.n_stored - f.get_int(key("nextn_predict_layers"), default=0)
        self.D = f.get_int(key("embedding_length"))
        self.H, self.d = f.get_int(key("attention.head_count")), f.get_int(key("attention.key_length"))
        self.n_rot = f.get_int(key("rope.dimension_count"))
        self.S = f.get_int(key("attention.sliding_window"))
        self.G = f.get_int(key("attention.output_group_count"))
        self.ratios = [int(r) for r in f.metadata[key("attention.compress_ratios")]]
        self.HI, self.dI, self.TK = (
            f.get_int(key(f"attention.indexer.{n}")) for n in ("head_count", "key_length", "top_k")
        )
        self.N = f.get_int(key("hyper_connection.count"))
        self.iterations = f.get_int(key("hyper_connection.sinkhorn_iterations"))
        self.eps_hc = f.get_float(key("hyper_connection.epsilon"))
        self.eps = f.get_float(key("attention.layer_norm_rms_epsilon"))
        self.K, self.n_hash = f.get_int(key("expert_used_count")), f.get_int(key("hash_layer_count"))
        self.expert_scale = f.get_float(key("expert_weights_scale"))
        self.limits = f.get_floats(key("swiglu_clamp_exp"), self.n_stored)
        self.shared_limits = f.get_floats(key("swiglu_clamp_shexp"), self.n_stored, self.limits)
        self.plain = f.get_float(key("rope.freq_base")) ** (-np.arange(0, self.n_rot, 2) / self.n_rot)
        self.yarn = self.yarn_frequencies()
        self.clear()

    def clear(self) -> None:
        self.n_tokens = 0
        self.states = [self.empty(ratio) for ratio in self.ratios[: self.n_stored]]
        self.streams = np.zeros((self.N, self.D))

    def empty(self, ratio: int) -> LayerState:
        state = LayerState(np.zeros((self.S, self.d)))
        if ratio == 4:
            state.accumulator = Accumulator(8, 2 * self.d)
            state.index_accumulator = Accumulator(8, 2 * self.dI)
        elif ratio == 128:
            state.accumulator = Accumulator(128, self.d)
        return state

    def save(self) -> tuple[int, list[LayerState]]:
        return self.n_tokens, copy.deepcopy(self.states)

    def restore(self, saved: tuple[int, list[LayerState]]) -> None:
        self.n_tokens, self.states = saved[0], copy.deepcopy(saved[1])

    def w(self, name: str, ending: str = "weight") -> Array:
        """A tensor as float64, slowest dimension first."""
        name = f"{name}.{ending}"
        if name not in self.tensors:
            info, raw = self.file.tensors[name], self.file.tensor_bytes(name)
            if info.type.name == "I32":
                values = raw.view(np.int32)
            elif info.type.name == "F32":
                values = raw.view(np.float32).astype(np.float64)
            else:
                rows = raw.reshape(int(np.prod(info.shape[1:])), -1)
                values = dequantize(rows, info.type).astype(np.float64)
            self.tensors[name] = values.reshape(tuple(reversed(info.shape)))
        return self.tensors[name]

    # positions

    def yarn_frequencies(self) -> Array:
        f, key = self.file, self.file.arch_key
        base, factor = (
            f.get_float(key("attention.compress_rope_freq_base")),
            f.get_float(key("rope.scaling.factor")),
        )
        context = f.get_int(key("rope.scaling.original_context_length"))
        fast, slow = (f.get_float(key(f"rope.scaling.yarn_beta_{n}")) for n in ("fast", "slow"))

        def corner(beta: float) -> float:
            return self.n_rot * np.log(context / (beta * 2 * np.pi)) / (2 * np.log(base))

        low, high = max(0, np.floor(corner(fast))), min(self.n_rot - 1, np.ceil(corner(slow)))
        f0 = base ** (-np.arange(0, self.n_rot, 2) / self.n_rot)
        ramp = np.clip((np.arange(self.n_rot // 2) - low) / max(0.001, high - low), 0, 1)
        return f0 * (1 - ramp) + f0 / factor * ramp

    def frequencies(self, ratio: int) -> Array:
        return self.yarn if ratio else self.plain

    def rope(self, x: Array, ratio: int, position: int) -> Array:
        return turn(x, self.frequencies(ratio), position)

    # hyper-connections

    def mix(self, streams: Array, name: str) -> Array:
        """The numbers of one place, before scale and base: one norm over all streams."""
        return self.w(f"{name}_fn") @ rms(streams.reshape(-1), self.eps)

    def sinkhorn(self, logits: Array) -> Array:
        """C[from, to]"""
        c = softmax(logits, 1) + self.eps_hc
        c = c / (c.sum(0, keepdims=True) + self.eps_hc)
        for _ in range(self.iterations - 1):
            c = c / (c.sum(1, keepdims=True) + self.eps_hc)
            c = c / (c.sum(0, keepdims=True) + self.eps_hc)
        return c

    def hc_pre(self, streams: Array, name: str) -> tuple[Array, Array, Array]:
        n, m = self.N, self.mix(streams, name)
        scale, base = self.w(f"{name}_scale"), self.w(f"{name}_base")
        pre = sigmoid(m[:n] * scale[0] + base[:n]) + self.eps_hc
        post = 2 * sigmoid(m[n : 2 * n] * scale[1] + base[n : 2 * n])
        c = self.sinkhorn((m[2 * n :] * scale[2] + base[2 * n :]).reshape(n, n))
        return pre @ streams, post, c

    def hc_post(self, streams: Array, y: Array, post: Array, c: Array) -> Array:
        return post[:, None] * y + c.T @ streams

    def hc_head(self, streams: Array) -> Array:
        m = self.mix(streams, "output_hc")
        pre = sigmoid(m * self.w("output_hc_scale")[0] + self.w("output_hc_base")) + self.eps_hc
        return pre @ streams

    # compressed rows

    def pooled(self, accumulator: Accumulator, row: int, ratio: int) -> Array:
        """Softmax per channel over the rows of a block, and with a ratio of 4 of the block before it."""
        first = row * ratio
        values, scores = accumulator.get(first, ratio)
        if ratio == 4:
            half = values.shape[1] // 2
            before, before_scores = accumulator.get(first - ratio, ratio)
            if row == 0:
                before_scores = np.full_like(scores, -np.inf)
            values = np.concatenate([before[:, :half], values[:, half:]])
            scores = np.concatenate([before_scores[:, :half], scores[:, half:]])
        return (softmax(scores, 0) * values).sum(0)

    def row_position(self, row: int, ratio: int) -> int:
        return row * ratio

    def compress(self, x: Array, name: str, p: int, ratio: int, accumulator: Accumulator) -> Array | None:
        """Add position p; the row that it completes, if it does."""
        score = self.w(f"{name}_gate") @ x + self.w(f"{name}_ape")[p % ratio]
        accumulator.put(p, self.w(f"{name}_kv") @ x, score)
        if (p + 1) % ratio:
            return None
        row = p // ratio
        pooled = rms(self.pooled(accumulator, row, ratio), self.eps, self.w(f"{name}_norm"))
        return self.rope(pooled, ratio, self.row_position(row, ratio))

    def visible(self, p: int, ratio: int) -> int:
        return (p + 1) // ratio

    def index_queries(self, qr: Array, n: str) -> Array:
        return (self.w(f"{n}indexer.attn_q_b") @ qr).reshape(self.HI, self.dI)

    def select(self, state: LayerState, x: Array, qr: Array, n: str, p: int) -> Array:
        """Which compressed rows a query sees, ascending."""
        keys = np.array(state.index_rows[: self.visible(p, 4)]).reshape(-1, self.dI)
        queries = self.rope(self.index_queries(qr, n), 4, p)
        weights = self.w(f"{n}indexer.proj") @ x / np.sqrt(self.dI * self.HI)
        scores = weights @ np.maximum(0, queries @ keys.T)
        return np.sort(np.argsort(-scores, kind="stable")[: self.TK])

    # attention

    def queries(self, qr: Array, n: str) -> Array:
        return rms((self.w(f"{n}attn_q_b") @ qr).reshape(self.H, self.d), self.eps)

    def raw_row(self, x: Array, n: str, ratio: int, p: int) -> Array:
        return self.rope(rms(self.w(f"{n}attn_kv") @ x, self.eps, self.w(f"{n}attn_kv_a_norm")), ratio, p)

    def weigh(self, scores: Array, sinks: Array) -> Array:
        """Softmax over keys and one sink per head, which has no value."""
        return softmax(np.concatenate([scores / np.sqrt(self.d), sinks[:, None]], 1), 1)[:, :-1]

    def unrotated(self, out: Array, ratio: int, p: int) -> Array:
        return self.rope(out, ratio, -p)

    def project(self, out: Array, n: str) -> Array:
        groups = out.reshape(self.G, -1)
        a = self.w(f"{n}attn_output_a").reshape(self.G, -1, groups.shape[1])
        return self.w(f"{n}attn_output_b") @ np.einsum("gij,gj->gi", a, groups).reshape(-1)

    def attention(self, layer: int, x: Array, p: int) -> Array:
        n, ratio, state = f"blk.{layer}.", self.ratios[layer], self.states[layer]
        qr = rms(self.w(f"{n}attn_q_a") @ x, self.eps, self.w(f"{n}attn_q_a_norm"))
        q = self.rope(self.queries(qr, n), ratio, p)
        state.raw[p % self.S] = self.raw_row(x, n, ratio, p)
        keys = [state.raw[np.arange(max(0, p - self.S + 1), p + 1) % self.S]]
        if state.accumulator is not None:
            row = self.compress(x, f"{n}attn_compressor", p, ratio, state.accumulator)
            state.rows += [row] if row is not None else []
        if state.index_accumulator is not None:
            row = self.compress(x, f"{n}indexer_compressor", p, ratio, state.index_accumulator)
            state.index_rows += [row] if row is not None else []
        if ratio == 4:
            keys += [state.rows[i][None] for i in self.select(state, x, qr, n, p)]
        elif ratio:
            keys += [row[None] for row in state.rows[: self.visible(p, ratio)]]
        k = np.concatenate(keys)
        out = self.weigh(q @ k.T, self.w(f"{n}attn_sinks")) @ k
        return self.project(self.unrotated(out, ratio, p), n)

    # experts

    def activate(self, gate: Array, up: Array, limit: float) -> Array:
        if limit > 1e-6:
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return gate * sigmoid(gate) * up

    def choose(self, g: Array, layer: int, token: int) -> Array:
        n = f"blk.{layer}."
        if layer < self.n_hash:
            return self.w(f"{n}ffn_gate_tid2eid")[token]
        return np.argsort(-(g + self.w(f"{n}exp_probs_b", "bias")), kind="stable")[: self.K]

    def experts(self, layer: int, x: Array, token: int) -> Array:
        n = f"blk.{layer}."
        logits = self.w(f"{n}ffn_gate_inp") @ x
        g = np.sqrt(np.logaddexp(0, logits))
        ids = self.choose(g, layer, token)
        weights = g[ids] / max(g[ids].sum(), 2**-14) * self.expert_scale
        y = np.zeros(self.D)
        for e, weight in zip(ids, weights, strict=True):
            gate, up, down = (self.w(f"{n}ffn_{part}_exps")[e] for part in ("gate", "up", "down"))
            y += weight * (down @ self.activate(gate @ x, up @ x, self.limits[layer]))
        gate, up, down = (self.w(f"{n}ffn_{part}_shexp") for part in ("gate", "up", "down"))
        return y + down @ self.activate(gate @ x, up @ x, self.shared_limits[layer])

    # the whole

    def block(self, layer: int, streams: Array, token: int, p: int) -> Array:
        n = f"blk.{layer}."
        x, post, c = self.hc_pre(streams, f"{n}hc_attn")
        y = self.attention(layer, rms(x, self.eps, self.w(f"{n}attn_norm")), p)
        streams = self.hc_post(streams, y, post, c)
        x, post, c = self.hc_pre(streams, f"{n}hc_ffn")
        y = self.experts(layer, rms(x, self.eps, self.w(f"{n}ffn_norm")), token)
        return self.hc_post(streams, y, post, c)

    def feed(self, token: int) -> Array:
        """Append a token; logits float64 [V]."""
        p = self.n_tokens
        streams = np.repeat(self.w("token_embd")[token][None], self.N, 0)
        for layer in range(self.n_layer):
            streams = self.block(layer, streams, token, p)
        self.n_tokens, self.streams = p + 1, streams
        return self.w("output") @ rms(self.hc_head(streams), self.eps, self.w("output_norm"))

    def logits(self, tokens: Array) -> Array:
        return np.stack([self.feed(int(token)) for token in tokens])

    def draft(self, token: int, p: int, streams: Array) -> Array:
        """What the block that predicts a further token gives at p from the streams of the token before."""
        n = f"blk.{self.n_layer}."
        embedding = rms(self.w("token_embd")[token], self.eps, self.w(f"{n}nextn.enorm"))
        hidden = rms(streams, self.eps, self.w(f"{n}nextn.hnorm"))
        joined = np.concatenate([np.repeat(embedding[None], self.N, 0), hidden], 1)
        streams = self.block(self.n_layer, joined @ self.w(f"{n}nextn.eh_proj").T, token, p)
        x = rms(self.hc_head(streams), self.eps, self.w(f"{n}nextn.shared_head_norm"))
        return self.w("output") @ x
