"""Llama and its many relatives: pre-norm attention with adjacent-pair rope, SwiGLU MLP, optional biases.

Mixtral goes by the same name and has experts instead of the MLP; ERNIE 4.5 is alike, with experts chosen by a
bias and shared ones in some layers of its larger models.
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
    experts = Experts.read(p.file, d) if Experts.any_in(p.file) else None
    rotation = rope.rotation(p, d.heads.d_k, neox=False)
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation)
        moe(p, d, experts, layer, x)
