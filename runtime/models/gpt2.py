"""GPT-2: learned positions instead of rope, layer norms, biases everywhere, GELU without a gate."""

from runtime.models import blocks
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, layer_norm=True)
    cache = p.cache_group("full")
    x = blocks.embed(p, d)
    p.add_positions(x, "position_embd")
    for layer in d.layers:
        blocks.attention(p, d, layer, x, cache, None)
        blocks.mlp(p, d, layer, x, activation="gelu")
    blocks.head(p, d, x)
