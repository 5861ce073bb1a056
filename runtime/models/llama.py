"""Llama and its many relatives: pre-norm attention with adjacent-pair rope, SwiGLU MLP, optional biases."""

from dataclasses import dataclass

from runtime.errors import UnsupportedModel
from runtime.gguf import ModelFile
from runtime.models import rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import CacheGroup, Plan, Rope, Rows


@dataclass(frozen=True, slots=True)
class Hyper:
    decoder: Decoder
    rope_base: float
    rope_factor: float

    @classmethod
    def read(cls, f: ModelFile) -> "Hyper":
        decoder = Decoder.read(f)
        if f.get_int(f.arch_key("expert_count"), default=0) > 0:
            raise UnsupportedModel(f"{f.path.name}: llama with experts is not supported")
        n_rot = f.get_int(f.arch_key("rope.dimension_count"), default=decoder.d_k)
        if n_rot != decoder.d_k:
            raise UnsupportedModel(f"{f.path.name}: rope over {n_rot} of {decoder.d_k} dims is not supported")
        return cls(decoder, f.get_float(f.arch_key("rope.freq_base"), default=10000.0), rope.linear_factor(f))


def attention(p: Plan, h: Decoder, layer: int, x: Rows, rotation: Rope, cache: CacheGroup) -> None:
    n = f"blk.{layer}."
    qkv = p.matmul(
        p.rms_norm(x, n + "attn_norm.weight", h.eps),
        [n + "attn_q.weight", n + "attn_k.weight", n + "attn_v.weight"],
        "qkv",
        biases=[n + "attn_q.bias", n + "attn_k.bias", n + "attn_v.bias"],
    )
    out = p.attention(qkv, cache, h.n_head, h.n_kv, h.d_k, h.d_v, rotation, h.d_k**-0.5)
    p.matmul(p.rows(out), [n + "attn_output.weight"], "y", biases=[n + "attn_output.bias"], residual=x)


def mlp(p: Plan, h: Decoder, layer: int, x: Rows) -> None:
    n = f"blk.{layer}."
    gate_up = p.matmul(
        p.rms_norm(x, n + "ffn_norm.weight", h.eps),
        [n + "ffn_gate.weight", n + "ffn_up.weight"],
        "gate_up",
        biases=[n + "ffn_gate.bias", n + "ffn_up.bias"],
    )
    hidden = p.gated(gate_up, h.n_ff, "silu")
    p.matmul(hidden, [n + "ffn_down.weight"], "y", biases=[n + "ffn_down.bias"], residual=x)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    h = Hyper.read(p.file)
    d = h.decoder
    divisors = p.weights.values("rope_freqs.weight", d.d_k // 2) if p.weights.has("rope_freqs.weight") else ()
    rotation = p.rope(rope.frequencies(d.d_k, h.rope_base, h.rope_factor, divisors), neox=False)
    cache = p.cache_group("full")
    x = p.embedding("token_embd.weight", d.n_embd)
    for layer in range(d.n_layer):
        attention(p, d, layer, x, rotation, cache)
        mlp(p, d, layer, x)
    head = "output.weight" if p.weights.has("output.weight") else "token_embd.weight"
    p.output(x, "output_norm.weight", head, d.eps)
