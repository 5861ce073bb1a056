"""StarCoder 2: layer norms, biases everywhere, GELU without a gate, and halves of a head paired by rope."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, layer_norm=True)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation)
        blocks.mlp(p, d, layer, x, activation="gelu")
