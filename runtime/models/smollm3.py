"""SmolLM 3: llama in which every fourth layer knows no positions."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan

PERIOD = 4


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    rotation = rope.rotation(p, d.heads.d_k, neox=False)
    for layer, x, cache in blocks.layers(p, d):
        has_positions = (layer.index + 1) % PERIOD != 0
        blocks.attention(p, d, layer, x, cache, rotation if has_positions else None)
        blocks.mlp(p, d, layer, x)
