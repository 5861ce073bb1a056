"""Qwen 3, dense or with experts: norms on query and key heads, whose size is their own, and no biases.

The text part of Qwen 3 VL is the same: with text alone its interleaved rope turns every pair by one position.
"""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.models.moe import Experts, moe
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    experts = Experts.read(p.file, d) if Experts.any_in(p.file) else None
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation, on_heads=blocks.norm_heads)
        moe(p, d, experts, layer, x)
