"""gpt-oss: sinks in the softmax, a window on every other layer, yarn, biases everywhere, clamped gates."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, Layer, local_layers, window_of
from runtime.models.moe import SOFTMAX_OF_SELECTED, Experts, mixture
from runtime.plan.builder import Plan
from runtime.plan.values import Rows

LIMIT = 7.0  # of gates from above, and of what they open, either way


def mlp(p: Plan, d: Decoder, e: Experts, layer: Layer, x: Rows) -> None:
    h = p.keep(p.rms_norm(x, f"{layer.prefix}post_attention_norm", d.eps))
    mixture(p, e, layer, h, x, activation="sigmoid-gate-capped", limit=LIMIT)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    experts = Experts.read(p.file, d, function=SOFTMAX_OF_SELECTED, normalise=False)
    window = window_of(p.file)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    caches = blocks.caches(p, local_layers(p.file, d.n_layer, window, period=2), window)
    for layer, x, cache in blocks.layers(p, d, caches):
        blocks.attention(p, d, layer, x, cache, rotation, sinks="attn_sinks")
        mlp(p, d, experts, layer, x)
