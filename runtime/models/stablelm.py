"""StableLM 2: layer norms, part of each head rotated; without a second norm both branches share the first."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, layer_norm=True)
    blocks.refuse_head_layer_norms(p, d)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    cache = p.cache_group("full")
    x = blocks.embed(p, d)
    for layer in d.layers:
        if p.weights.has(f"{layer.prefix}ffn_norm.weight"):
            blocks.attention(p, d, layer, x, cache, rotation)
            blocks.mlp(p, d, layer, x)
        else:
            blocks.parallel(p, d, layer, x, cache, rotation)
    blocks.head(p, d, x)
