"""dots.llm1 and Ling 2 (``bailingmoe2``): norms on heads, experts gated by sigmoids, by groups in the second.

The first layers are dense; the second family keeps q, k and v in one matrix and rotates part of each head.
"""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, n_nextn
from runtime.models.moe import SIGMOID, Experts, moe
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, n_extra=n_nextn(p.file))
    experts = Experts.read(p.file, d, function=SIGMOID)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation, on_heads=blocks.norm_heads)
        moe(p, d, experts, layer, x)
