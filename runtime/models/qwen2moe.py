"""Qwen 2 MoE: experts whose weights are not renormalised, and a shared one behind a gate of its own."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, Layer
from runtime.models.moe import Experts, mixture
from runtime.plan.builder import Plan
from runtime.plan.values import Rows


def mlp(p: Plan, d: Decoder, e: Experts, layer: Layer, x: Rows, *, pre: str = "ffn_norm") -> None:
    """x += mixture(h) + gate * shared(h) with h = pre(x)"""
    h = p.keep(p.rms_norm(x, layer.prefix + pre, d.eps))
    y = blocks.feed_forward(p, layer, h, n_ff=e.n_ff_shared, suffix="_shexp")
    p.add_gated(y, x, h, f"{layer.prefix}ffn_gate_inp_shexp")
    mixture(p, e, layer, h, x)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    experts = Experts.read(p.file, d, normalise=False)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation)
        mlp(p, d, experts, layer, x)
