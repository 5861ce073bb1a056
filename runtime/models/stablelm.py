"""StableLM 2: layer norms, part of each head rotated; without a second norm both branches share the first."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, layer_norm=True)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        if p.weights.has(f"{layer.prefix}ffn_norm.weight"):
            blocks.attention(p, d, layer, x, cache, rotation)
            blocks.mlp(p, d, layer, x)
        else:
            blocks.parallel(p, d, layer, x, cache, rotation)
