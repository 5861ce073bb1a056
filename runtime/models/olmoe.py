"""OLMoE: norms over whole query and key projections, experts whose weights are not renormalised."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.models.moe import Experts, moe
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    experts = Experts.read(p.file, d, normalise=False)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation, on_heads=blocks.norm_projections)
        moe(p, d, experts, layer, x)
