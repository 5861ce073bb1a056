"""LFM 2: short gated convolutions, with attention in the layers that have heads of keys.

All attention has a window where the file gives one. The variant with experts (``lfm2moe``) has them after the
first layers, chosen by a bias.
"""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, Layer, window_of
from runtime.models.moe import SIGMOID, Experts, moe
from runtime.plan.builder import Plan
from runtime.plan.convolution import convolve
from runtime.plan.values import Rows


def short_convolution(p: Plan, d: Decoder, layer: Layer, x: Rows, taps: int) -> None:
    """x += out(after * convolution(before * inputs)), all three projections of the normed x."""
    n, width = f"{layer.prefix}shortconv.", d.n_embd
    rows = p.matmul(
        blocks.norm(p, d, x, f"{layer.prefix}attn_norm"), [f"{n}in_proj"], "shortconv", widths=[3 * width]
    )
    before, after, inputs = (rows.columns(i * width, width) for i in range(3))
    y = convolve(p, inputs, [f"{n}conv"], [width], taps, "shortconv.y", before=before, after=after)
    p.matmul(y, [f"{n}out_proj"], "y", residual=x)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file, mixed=True)
    taps = f.get_int(f.arch_key("shortconv.l_cache"), low=1)
    experts = Experts.read(f, d, function=SIGMOID) if Experts.any_in(f) else None
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    window = window_of(f)
    caches = blocks.caches(p, [window > 0] * d.n_layer, window)
    for layer, x, cache in blocks.layers(p, d, caches, last_norm="token_embd_norm"):
        if layer.attends:
            blocks.attention(p, d, layer, x, cache, rotation, on_heads=blocks.norm_heads)
        else:
            short_convolution(p, d, layer, x, taps)
        moe(p, d, experts, layer, x)
