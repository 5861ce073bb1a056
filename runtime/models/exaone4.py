"""EXAONE 4: norms after each branch instead of before, and on query and key heads.

The 32B model, known by its 64 layers, has three windowed layers for each that sees everything, and only
those rotate.
"""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, local_layers, window_of
from runtime.plan.builder import Plan

N_LAYER_32B = 64
WINDOW_32B = 4096


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file)
    window = window_of(f, WINDOW_32B) if d.n_layer == N_LAYER_32B else 0
    is_local = local_layers(f, d.n_layer, window, period=4)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    caches = blocks.caches(p, is_local, window)
    for layer, x, cache in blocks.layers(p, d, caches):
        turns = rotation if is_local[layer.index] or not window else None
        blocks.attention(
            p, d, layer, x, cache, turns, pre="", post="post_attention_norm", on_heads=blocks.norm_heads
        )
        blocks.mlp(p, d, layer, x, pre="", post="post_ffw_norm")
