"""Qwen 3 and the text part of Qwen 3 VL: norms on query and key heads, whose size is their own, no biases.

With text alone the interleaved rope of the vision variant turns every pair by the same position: plain rope.
"""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    cache = p.cache_group("full")
    x = blocks.embed(p, d)
    for layer in d.layers:
        blocks.attention(p, d, layer, x, cache, rotation, on_heads=blocks.norm_heads)
        blocks.mlp(p, d, layer, x)
    blocks.head(p, d, x)
