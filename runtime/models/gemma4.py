"""Gemma 4: windowed and full layers with heads of their own sizes, the last of which share keys and values.

Small models have embeddings for every layer; the large one has experts beside the MLP of each layer. Values
are normed too, attention has no scale, and a layer without a matrix for values takes its keys as they were
before norm and rotation.
"""

from collections.abc import Iterator
from dataclasses import replace

from runtime.errors import ModelError
from runtime.gguf import ModelFile
from runtime.models import blocks, per_layer, rope
from runtime.models.hyper import Decoder, Layer, local_layers, window_of
from runtime.models.moe import Experts
from runtime.plan.attention import attend_heads
from runtime.plan.builder import Plan
from runtime.plan.experts import expert_mlp, route
from runtime.plan.values import CacheGroup, Heads, Rope, Rows, Source

PERIOD = 6


def sized(f: ModelFile, d: Decoder, is_local: tuple[bool, ...]) -> Iterator[Layer]:
    """The layers with the heads of their kind."""
    local = [
        f.get_int(f.arch_key(f"attention.{kind}_length_swa"), default=n, low=1)
        for kind, n in (("key", d.heads.d_k), ("value", d.heads.d_v))
    ]
    for layer in d.layers:
        h = layer.heads
        yield replace(layer, heads=Heads(h.n, h.n_kv, *local)) if is_local[layer.index] else layer


def n_storing(f: ModelFile, is_local: tuple[bool, ...]) -> int:
    """Layers with keys and values of their own; those after them share the last windowed's and full one's.

    Errors: ModelError where the two layers before the sharing ones are not one of each.
    """
    n_layer = len(is_local)
    n_shared = f.get_int(f.arch_key("attention.shared_kv_layers"), default=0)
    n = n_layer - n_shared
    if n_shared and (n < 2 or is_local[n - 2 : n] != (True, False)):
        raise ModelError(f"{f.path.name}: {n_shared} of {n_layer} layers cannot share keys and values")
    return n


def attend(
    p: Plan, d: Decoder, layer: Layer, h: Source, cache: CacheGroup, rotation: Rope, *, shared: bool
) -> Rows:
    """Attention without a scale, with norms on values too; a `shared` layer has queries alone."""
    n, heads = layer.prefix, layer.heads
    q, k, v = heads.widths
    if shared:
        p.weights.ignore(f"{n}attn_k.weight", f"{n}attn_v.weight", f"{n}attn_k_norm.weight")
        qkv = p.matmul(h, [f"{n}attn_q"], "qkv", widths=[q])
        p.head_norm(qkv, heads.n, heads.d_k, 0, heads.d_k, d.eps, f"{n}attn_q_norm")
    else:
        values = "attn_v" if p.weights.has(f"{n}attn_v.weight") else "attn_k"
        qkv = p.matmul(h, [f"{n}attn_q", f"{n}attn_k", n + values], "qkv", widths=[q, k, v])
        blocks.norm_heads(p, d, layer, qkv)
        p.head_norm(qkv.columns(q + k, v), heads.n_kv, heads.d_v, 0, heads.d_v, d.eps)
    out = attend_heads(p, qkv, cache, heads, rotation, scale=1.0, shared=shared)
    return p.matmul(out, [f"{n}attn_output"], "y", widths=[d.n_embd])


def mlp_and_experts(p: Plan, d: Decoder, e: Experts, layer: Layer, x: Rows) -> None:
    """x += norm(norm1(mlp(norm(x))) + norm2(mixture(pre2(x)))), routed by x without a weighed norm"""
    n = layer.prefix
    both, mixed = p.buffer("both", d.n_embd), p.buffer("mixed", d.n_embd)
    p.clear(both)
    y = blocks.feed_forward(p, layer, p.rms_norm(x, f"{n}ffn_norm", d.eps), activation="gelu-gate")
    p.rms_norm_add(y, f"{n}post_ffw_norm_1", d.eps, both)
    router = p.rms_norm(x, f"{n}ffn_gate_inp.scale", d.eps)
    logits = p.matmul(router, [f"{n}ffn_gate_inp"], "router", widths=[e.gating.n_expert])
    p.scale(logits, d.n_embd**-0.5)
    routing = route(p, logits, e.gating, scales=f"{n}ffn_down_exps.scale")
    p.clear(mixed)
    h = p.keep(p.rms_norm(x, f"{n}pre_ffw_norm_2", d.eps))
    up, down = [f"{n}ffn_gate_up_exps"], f"{n}ffn_down_exps"
    if not p.weights.has(f"{n}ffn_gate_up_exps.weight"):
        up = [f"{n}ffn_gate_exps", f"{n}ffn_up_exps"]
    expert_mlp(p, h, routing, up, down, e.n_ff, mixed, activation="gelu-gate")
    p.rms_norm_add(mixed, f"{n}post_ffw_norm_2", d.eps, both)
    p.rms_norm_add(both, f"{n}post_ffw_norm", d.eps, x)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file)
    is_local = local_layers(f, d.n_layer, window_of(f), PERIOD)
    experts = Experts.read(f, d) if Experts.any_in(f) else None
    everywhere = local = rope.rotation(p, d.heads.d_k, neox=True)
    d = replace(d, layers=tuple(sized(f, d, is_local)))
    if any(is_local):
        d_k = next(layer.heads.d_k for layer in d.layers if is_local[layer.index])
        local = rope.plain(p, d_k, neox=True, base="rope.freq_base_swa", count="rope.dimension_count_swa")
    n_stored, width = n_storing(f, is_local), per_layer.width_of(f)
    x = p.embedding("token_embd", d.n_embd, d.n_embd**0.5)
    parts = per_layer.embed(p, d, x, width) if width else None
    for layer, cache in zip(d.layers, blocks.caches(p, is_local, window_of(f)), strict=True):
        rotation = local if is_local[layer.index] else everywhere
        h = p.rms_norm(x, f"{layer.prefix}attn_norm", d.eps)
        y = attend(p, d, layer, h, cache, rotation, shared=layer.index >= n_stored)
        p.rms_norm_add(y, f"{layer.prefix}post_attention_norm", d.eps, x)
        if experts is None:
            blocks.mlp(p, d, layer, x, post="post_ffw_norm", activation="gelu-gate")
        else:
            mlp_and_experts(p, d, experts, layer, x)
        if parts is not None:
            per_layer.add(p, d, parts, layer, x, x)
        scale = f"{layer.prefix}layer_output_scale.weight"
        if p.weights.has(scale):
            p.scale(x, float(p.weights.values(scale, 1)[0]))
    softcap = f.get_float(f.arch_key("final_logit_softcapping"), default=0.0)
    blocks.readout(p, d, x, softcap=softcap)
