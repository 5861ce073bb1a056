"""GLM 4: norms around each branch, half of a head rotated in adjacent pairs, gate and up in one matrix."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    rotation = rope.rotation(p, d.heads.d_k, neox=False)
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation, post="post_attention_norm")
        blocks.mlp(p, d, layer, x, post="post_ffw_norm")
