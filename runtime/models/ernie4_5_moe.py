"""ERNIE 4.5 with experts: llama's attention, experts chosen with a bias, shared ones, in some layers."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.models.moe import Experts, moe
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    experts = Experts.read(p.file, d)
    rotation = rope.rotation(p, d.heads.d_k, neox=False)
    cache = p.cache_group("full")
    x = blocks.embed(p, d)
    for layer in d.layers:
        blocks.attention(p, d, layer, x, cache, rotation)
        moe(p, d, experts, layer, x)
    blocks.head(p, d, x)
