"""Nemotron H: one mixer per layer, Mamba 2, attention without rope or a squared-ReLU MLP.

A layer with an MLP's width has one, or in ``nemotron_h_moe`` experts; of the others those with heads of keys
have attention.
"""

from runtime.models import blocks
from runtime.models.hyper import Decoder
from runtime.models.moe import SIGMOID, Experts, mixture, shared
from runtime.plan.builder import Plan
from runtime.plan.state_space import StateSpace, mamba2

ACTIVATION = "relu-squared"


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d, s = p.file, Decoder.read(p.file, mixed=True), StateSpace.read(p.file)
    s.check_heads(f)
    experts = Experts.read(f, d, function=SIGMOID) if Experts.any_in(f) else None
    scale = f.get_float(f.arch_key("attention.scale"), default=0.0)
    for layer, x, cache in blocks.layers(p, d):
        if layer.n_ff and experts is not None and p.weights.has(f"{layer.prefix}ffn_gate_inp.weight"):
            h = p.keep(blocks.norm(p, d, x, f"{layer.prefix}attn_norm"))
            shared(p, experts, layer, h, x, activation=ACTIVATION)
            mixture(p, experts, layer, h, x, activation=ACTIVATION)
        elif layer.n_ff:
            blocks.mlp(p, d, layer, x, pre="attn_norm", activation=ACTIVATION)
        elif layer.attends:
            blocks.attention(p, d, layer, x, cache, None, scale=scale)
        else:
            mamba2(p, s, layer.prefix, blocks.norm(p, d, x, f"{layer.prefix}attn_norm"), x, d.eps)
