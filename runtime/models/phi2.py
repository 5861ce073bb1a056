"""Phi 2: both branches of a layer from one layer norm, biases everywhere (the head too), partial rope."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, layer_norm=True)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        blocks.parallel(p, d, layer, x, cache, rotation, activation="gelu")
