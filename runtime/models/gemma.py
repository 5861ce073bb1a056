"""Gemma: llama with scaled embeddings, GeGLU, and halves of a head paired by rope."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    cache = p.cache_group("full")
    x = blocks.embed(p, d, scale=d.n_embd**0.5)
    for layer in d.layers:
        blocks.attention(p, d, layer, x, cache, rotation)
        blocks.mlp(p, d, layer, x, activation="gelu-gate")
    blocks.head(p, d, x)
