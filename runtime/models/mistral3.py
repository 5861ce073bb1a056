"""Mistral 3: llama with yarn, and queries that grow sharper with the logarithm of their position."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, Layer
from runtime.plan.builder import Plan
from runtime.plan.values import Rows


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file)
    rotation = rope.rotation(p, d.heads.d_k, neox=False)
    original = rope.Scaling.read(f).original_context
    temperature = f.get_float(f.arch_key("attention.temperature_scale"), default=0.0)

    def temper(p: Plan, d: Decoder, layer: Layer, qkv: Rows) -> None:
        if temperature:
            p.temper_queries(qkv, layer.heads, temperature, original)

    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation, on_heads=temper)
        blocks.mlp(p, d, layer, x)
