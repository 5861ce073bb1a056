"""Llama and its many relatives: pre-norm attention with adjacent-pair rope, SwiGLU MLP, optional biases."""

from runtime.errors import UnsupportedModel
from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    if (n_rot := rope.rotated(p.file, d.heads.d_k)) != d.heads.d_k:
        raise UnsupportedModel(
            f"{p.file.path.name}: rope over {n_rot} of {d.heads.d_k} dims is not supported"
        )
    rotation = rope.rotation(p, d.heads.d_k, neox=False)
    cache = p.cache_group("full")
    x = blocks.embed(p, d)
    for layer in d.layers:
        blocks.attention(p, d, layer, x, cache, rotation)
        blocks.mlp(p, d, layer, x)
    blocks.head(p, d, x)
