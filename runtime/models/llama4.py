"""Llama 4: three layers that see their chunk for each one that sees everything and knows no positions.

Query and key heads of the former are normed, without weights, after they were rotated; queries of the latter
grow sharper with their position. The weight of a row's expert multiplies what it sees, not what it says.
"""

from runtime.kernels.attention_layer import CHUNKED
from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, Layer
from runtime.models.moe import SIGMOID, Experts, mixture, shared
from runtime.plan.builder import Plan
from runtime.plan.values import Rope, Rows

CHUNK = 8192
PERIOD = 4
TEMPERATURE = 0.1
N_EXPERT_WITHOUT_NORMS = 128  # Maverick


def rotate_and_norm(rotation: Rope, normed: bool) -> blocks.OnHeads:
    def on_heads(p: Plan, d: Decoder, layer: Layer, qkv: Rows) -> None:
        h = layer.heads
        p.rotate(qkv, h, rotation)
        if normed:
            p.head_norm(qkv, h.n, h.d_k, h.n_kv, h.d_k, d.eps)

    return on_heads


def temper(p: Plan, d: Decoder, layer: Layer, qkv: Rows) -> None:
    p.temper_queries(qkv, layer.heads, TEMPERATURE, CHUNK, offset=1)


def mlp(p: Plan, d: Decoder, e: Experts, layer: Layer, x: Rows) -> None:
    if not e.has(layer):
        return blocks.mlp(p, d, layer, x)
    h = p.keep(p.rms_norm(x, f"{layer.prefix}ffn_norm", d.eps))
    shared(p, e, layer, h, x)
    mixture(p, e, layer, h, x, weigh_inputs=True)
    return None


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    experts = Experts.read(p.file, d, function=SIGMOID, normalise=False, n_shared=1)
    normed = experts.gating.n_expert != N_EXPERT_WITHOUT_NORMS
    rotated = rotate_and_norm(rope.rotation(p, d.heads.d_k, neox=False), normed)
    is_chunked = [(layer.index + 1) % PERIOD != 0 for layer in d.layers]
    caches = blocks.caches(p, is_chunked, CHUNK, mask=CHUNKED)
    for layer, x, cache in blocks.layers(p, d, caches):
        blocks.attention(p, d, layer, x, cache, None, on_heads=rotated if is_chunked[layer.index] else temper)
        mlp(p, d, experts, layer, x)
