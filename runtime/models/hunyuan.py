"""Hunyuan, dense or with experts: query and key heads are normed after they were rotated."""

from runtime.errors import ModelError
from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, Layer
from runtime.models.moe import Experts, moe
from runtime.plan.builder import Plan
from runtime.plan.values import Rope, Rows

MAX_ALPHA = 1e9


def rotation_for(p: Plan, d_k: int) -> Rope:
    """Rope whose base grows by an NTK factor: ``base * alpha ** (d / (d - 2))``."""
    f = p.file
    alpha = f.get_float(f.arch_key("rope.scaling.alpha"), default=0.0)
    if d_k <= 2 or not 0 <= alpha <= MAX_ALPHA:
        raise ModelError(f"{f.path.name}: rope scaling by alpha {alpha} over heads of {d_k} makes no sense")
    base = rope.base_of(f) * (alpha ** (d_k / (d_k - 2)) or 1.0)
    scaling = rope.Scaling.read(f)
    return p.rope(scaling.frequencies(rope.rotated(f, d_k), base), neox=True, magnitude=scaling.magnitude)


def rotate_then_norm(rotation: Rope) -> blocks.OnHeads:
    def on_heads(p: Plan, d: Decoder, layer: Layer, qkv: Rows) -> None:
        p.rotate(qkv, layer.heads, rotation)
        blocks.norm_heads(p, d, layer, qkv)

    return on_heads


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file)
    experts = Experts.read(p.file, d) if Experts.any_in(p.file) else None
    on_heads = rotate_then_norm(rotation_for(p, d.heads.d_k))
    for layer, x, cache in blocks.layers(p, d):
        blocks.attention(p, d, layer, x, cache, None, on_heads=on_heads)
        moe(p, d, experts, layer, x)
