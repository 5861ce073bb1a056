"""Phi 3: one matrix for q, k and v, one for gate and up, and two sets of rope factors."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan
from runtime.plan.values import Rope


def rotation_for(p: Plan, d_k: int) -> Rope:
    """The long factors serve a context beyond the one first trained for, at every position of it."""
    scaling = rope.Scaling.read(p.file)
    n_rot = rope.rotated(p.file, d_k)
    name = "rope_factors_long" if p.options.n_ctx > scaling.original_context else "rope_factors_short"
    turns = scaling.frequencies(n_rot, rope.base_of(p.file), rope.divisors(p, n_rot, name))
    return p.rope(turns, neox=True, magnitude=scaling.magnitude)


def build(p: Plan) -> None:
    """Write the forward pass into `p`. Windows that files mention are not used, as in the reference."""
    d = Decoder.read(p.file)
    rotation = rotation_for(p, d.heads.d_k)
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation)
        blocks.mlp(p, d, layer, x)
