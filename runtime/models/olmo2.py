"""OLMo 2 and 3: norms after each branch instead of before, and over whole query and key projections.

OLMo 3 adds windows; its windowed layers rotate by plain frequencies, the others by extended ones.
"""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, local_layers, window_of
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    window = window_of(p.file)
    is_local = local_layers(p.file, d.n_layer, window, period=4)
    everywhere = rope.rotation(p, d.heads.d_k, neox=True)
    local = rope.plain(p, d.heads.d_k, neox=True) if any(is_local) else everywhere
    caches = blocks.caches(p, is_local, window)
    for layer, x, cache in blocks.layers(p, d, caches):
        blocks.attention(
            p, d, layer, x, cache, local if is_local[layer.index] else everywhere,
            pre="", post="post_attention_norm", on_heads=blocks.norm_projections,
        )  # fmt: skip
        blocks.mlp(p, d, layer, x, pre="", post="post_ffw_norm")
