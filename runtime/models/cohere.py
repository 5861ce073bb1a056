"""Command R and Command R7B: both branches of a layer from one layer norm without bias, and scaled logits.

The second (``cohere2``) has three windowed layers for each that sees everything, and only those rotate.
"""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, local_layers, window_of
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file, layer_norm=True)
    window = window_of(f) if f.architecture == "cohere2" else 0
    is_local = local_layers(f, d.n_layer, window, period=4)
    rotation = rope.rotation(p, d.heads.d_k, neox=False)
    caches, scale = blocks.caches(p, is_local, window), f.get_float(f.arch_key("logit_scale"))
    for layer, x, cache in blocks.layers(p, d, caches, logit_scale=scale):
        blocks.parallel(p, d, layer, x, cache, rotation if is_local[layer.index] or not window else None)
