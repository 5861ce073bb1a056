"""Mamba and Mamba 2: nothing but state spaces."""

from runtime.models import blocks
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan
from runtime.plan.state_space import StateSpace, mamba, mamba2


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d, s = Decoder.read(p.file, mixed=True), StateSpace.read(p.file)
    heads = p.file.architecture == "mamba2"
    if heads:
        s.check_heads(p.file)
    mixer = mamba2 if heads else mamba
    x = p.embedding("token_embd", d.n_embd)
    for layer in d.layers:
        h = blocks.norm(p, d, x, f"{layer.prefix}attn_norm")
        mixer(p, s, layer.prefix, h, x, d.eps)
    blocks.readout(p, d, x)
