"""Granite 4: Granite whose layers without heads of keys are Mamba 2 instead of attention."""

from runtime.models import blocks, rope
from runtime.models.granite import Multipliers
from runtime.models.hyper import Decoder
from runtime.models.moe import Experts, moe
from runtime.plan.builder import Plan
from runtime.plan.state_space import StateSpace, mamba2


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d, s = p.file, Decoder.read(p.file, mixed=True), StateSpace.read(p.file)
    s.check_heads(f)
    m = Multipliers.read(f)
    experts = Experts.read(f, d) if Experts.any_in(f) else None
    rotates = f.get_bool(f.arch_key("rope.scaling.finetuned"), default=True)
    rotation = rope.rotation(p, d.heads.d_k, neox=False) if rotates else None
    for layer, x, cache in blocks.layers(p, d, embedding_scale=m.embedding, logit_scale=1.0 / m.logits):
        if layer.attends:
            blocks.attention(p, d, layer, x, cache, rotation, scale=m.attention, residual_scale=m.residual)
        else:
            h = blocks.norm(p, d, x, f"{layer.prefix}attn_norm")
            mamba2(p, s, layer.prefix, h, x, d.eps, m.residual)
        moe(p, d, experts, layer, x, scale=m.residual)
