"""GPT-NeoX and Pythia: part of each head rotated, GELU, and both branches of a layer from the same input."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, layer_norm=True)
    parallel = p.file.get_bool(p.file.arch_key("use_parallel_residual"), default=True)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        if parallel:
            h = p.keep(blocks.norm(p, d, x, f"{layer.prefix}ffn_norm"))
            blocks.attention(p, d, layer, x, cache, rotation)
            blocks.feed_forward(p, layer, h, activation="gelu", residual=x)
        else:
            blocks.attention(p, d, layer, x, cache, rotation)
            blocks.mlp(p, d, layer, x, activation="gelu")
