"""Llama and its many relatives: pre-norm attention with adjacent-pair rope, SwiGLU MLP, optional biases.

Mixtral goes by the same name and has experts instead of the MLP.
"""

from runtime.errors import UnsupportedModel
from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.models.moe import Experts, moe
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    if (n_rot := rope.rotated(p.file, d.heads.d_k)) != d.heads.d_k:
        raise UnsupportedModel(
            f"{p.file.path.name}: rope over {n_rot} of {d.heads.d_k} dims is not supported"
        )
    experts = Experts.read(p.file, d) if p.file.get_int(p.file.arch_key("expert_count"), default=0) else None
    rotation = rope.rotation(p, d.heads.d_k, neox=False)
    cache = p.cache_group("full")
    x = blocks.embed(p, d)
    for layer in d.layers:
        blocks.attention(p, d, layer, x, cache, rotation)
        if experts:
            moe(p, d, experts, layer, x)
        else:
            blocks.mlp(p, d, layer, x)
    blocks.head(p, d, x)
