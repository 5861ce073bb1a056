"""GLM 4.5: biases on q, k and v, half of a head rotated, norms on heads in the larger one, expert sigmoids.

The layers at the end that predict further tokens are not run.
"""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, Layer, n_nextn
from runtime.models.moe import SIGMOID, Experts, moe
from runtime.plan.builder import Plan
from runtime.plan.values import Rows


def norm_heads(p: Plan, d: Decoder, layer: Layer, qkv: Rows) -> None:
    if p.weights.has(f"{layer.prefix}attn_q_norm.weight"):
        blocks.norm_heads(p, d, layer, qkv)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, n_extra=n_nextn(p.file))
    experts = Experts.read(p.file, d, function=SIGMOID)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, rotation, on_heads=norm_heads)
        moe(p, d, experts, layer, x, pre="post_attention_norm")
