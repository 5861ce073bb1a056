"""Falcon H1: attention and Mamba 2 side by side in every layer, on the same normed input.

The multipliers of the original are in the weights.
"""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan
from runtime.plan.state_space import StateSpace, mamba2


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d, s = Decoder.read(p.file), StateSpace.read(p.file)
    s.check_heads(p.file)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        h = p.rows(p.keep(blocks.norm(p, d, x, f"{layer.prefix}attn_norm")))
        said = blocks.attend(p, d, layer, h, cache, rotation)
        p.matmul(said, [f"{layer.prefix}attn_output"], "y", residual=x)
        mamba2(p, s, layer.prefix, h, x, d.eps)
        blocks.mlp(p, d, layer, x)
