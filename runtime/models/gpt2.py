"""GPT-2: learned positions instead of rope, layer norms, biases everywhere, GELU without a gate."""

from runtime.models import blocks
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, layer_norm=True)
    for layer, x, cache in blocks.layers(p, d, positions="position_embd"):
        blocks.attention(p, d, layer, x, cache, None)
        blocks.mlp(p, d, layer, x, activation="gelu")
