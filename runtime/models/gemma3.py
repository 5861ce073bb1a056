"""Gemma 3: sandwich norms, q/k head norms, GeGLU, and five windowed layers for each one that sees everything."""

from dataclasses import dataclass

import numpy as np

from runtime.gguf import ModelFile
from runtime.models import rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import CacheGroup, Plan, Rope, Rows

N_LAYER_27B = 62  # the 27B model scales queries by its embedding width per head instead of the head size


@dataclass(frozen=True, slots=True)
class Hyper:
    decoder: Decoder
    window: int
    is_local: tuple[bool, ...]
    rope_base: float
    rope_base_local: float
    rope_factor: float
    softcap: float

    @classmethod
    def read(cls, f: ModelFile) -> "Hyper":
        decoder, key = Decoder.read(f), f.arch_key
        window = f.get_int(key("attention.sliding_window"), default=0)
        return cls(
            decoder,
            window,
            local_layers(f, decoder.n_layer) if window else (False,) * decoder.n_layer,
            f.get_float(key("rope.freq_base"), default=10000.0),
            f.get_float(key("rope.freq_base_swa"), default=10000.0),
            rope.linear_factor(f),
            f.get_float(key("final_logit_softcapping"), default=0.0),
        )

    @property
    def scale(self) -> float:
        d = self.decoder
        return (d.n_embd / d.n_head if d.n_layer == N_LAYER_27B else d.d_k) ** -0.5


def local_layers(f: ModelFile, n_layer: int) -> tuple[bool, ...]:
    """Which layers are windowed: by a period (the last of each is global) or by an array of flags per layer."""
    key = f.arch_key("attention.sliding_window_pattern")
    if isinstance(f.metadata.get(key), np.ndarray):
        return tuple(bool(flag) for flag in f.get_ints(key, n_layer))
    period = f.get_int(key, default=6)
    return tuple(period > 0 and i % period < period - 1 for i in range(n_layer))


def attention(p: Plan, h: Hyper, layer: int, x: Rows, rotation: Rope, cache: CacheGroup) -> None:
    n, d = f"blk.{layer}.", h.decoder
    qkv = p.matmul(
        p.rms_norm(x, n + "attn_norm.weight", d.eps),
        [n + "attn_q.weight", n + "attn_k.weight", n + "attn_v.weight"],
        "qkv",
    )
    p.head_norm(qkv, d.n_head, d.n_kv, d.d_k, n + "attn_q_norm.weight", n + "attn_k_norm.weight", d.eps)
    out = p.attention(qkv, cache, d.n_head, d.n_kv, d.d_k, d.d_v, rotation, h.scale)
    y = p.matmul(p.rows(out), [n + "attn_output.weight"], "y")
    p.rms_norm_add(y, n + "post_attention_norm.weight", d.eps, x)


def mlp(p: Plan, h: Hyper, layer: int, x: Rows) -> None:
    n, d = f"blk.{layer}.", h.decoder
    gate_up = p.matmul(
        p.rms_norm(x, n + "ffn_norm.weight", d.eps), [n + "ffn_gate.weight", n + "ffn_up.weight"], "gate_up"
    )
    y = p.matmul(p.gated(gate_up, d.n_ff, "gelu"), [n + "ffn_down.weight"], "y")
    p.rms_norm_add(y, n + "post_ffw_norm.weight", d.eps, x)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    h = Hyper.read(p.file)
    d = h.decoder
    everywhere = p.rope(rope.frequencies(d.d_k, h.rope_base, h.rope_factor), neox=True)
    local = p.rope(rope.frequencies(d.d_k, h.rope_base_local), neox=True) if any(h.is_local) else everywhere
    full = p.cache_group("full") if not all(h.is_local) else None
    window = p.cache_group("window", h.window) if any(h.is_local) else None
    x = p.embedding("token_embd.weight", d.n_embd, scale=d.n_embd**0.5)
    for layer in range(d.n_layer):
        cache = window if h.is_local[layer] else full
        assert cache is not None
        attention(p, h, layer, x, local if h.is_local[layer] else everywhere, cache)
        mlp(p, h, layer, x)
    head = "output.weight" if p.weights.has("output.weight") else "token_embd.weight"
    p.output(x, "output_norm.weight", head, d.eps, softcap=h.softcap)
