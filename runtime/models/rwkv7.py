"""RWKV 7: a state that each token rewrites instead of attention, a squared ReLU over shifted rows as MLP."""

from runtime.models import blocks
from runtime.models.hyper import Decoder, Layer
from runtime.plan.builder import Plan
from runtime.plan.values import Rows, Source
from runtime.plan.wkv import head_width, mix, shift


def low_rank(p: Plan, x: Source, name: str, inner: str, out: str) -> Rows:
    """second . inner(first . x), the two matrices called `name` and a number; "" for nothing between them"""
    first = p.matmul(x, [f"{name}1"], f"{out}.low")
    between = p.activated(first, first.width, inner) if inner else first
    return p.matmul(between, [f"{name}2"], out, widths=[x.k], narrow=True)


def time_mix(p: Plan, d: Decoder, layer: Layer, x: Rows, heads: int, first: Rows | None) -> Rows:
    """x += time mix(norm(x)); returns the layer's values if there are none of a `first` layer."""
    n, width = f"{layer.prefix}time_mix_", [d.n_embd]
    h = p.keep(blocks.norm(p, d, x, f"{layer.prefix}attn_norm"))
    r, w, k, v, rate, gate = shift(p, h, f"{n}lerp_fused", 6)
    values = p.matmul(v, [f"{n}value"], "v" if first else "first v", widths=width)
    rows = {
        "r": p.matmul(r, [f"{n}receptance"], "r", widths=width),
        "w": low_rank(p, w, f"{n}w", "tanh", "w"),
        "k": p.matmul(k, [f"{n}key"], "k", widths=width),
        "v": values,
        "rate": low_rank(p, rate, f"{n}a", "", "rate"),
        "gate": low_rank(p, gate, f"{n}g", "sigmoid", "gate"),
    }
    if first is not None:
        rows |= {"mix": low_rank(p, v, f"{n}v", "", "mix"), "first": first}
    else:
        for i in range(3):
            p.weights.ignore(f"{n}v{i}.weight")
    p.matmul(mix(p, n, heads, rows), [f"{n}output"], "y", residual=x)
    return first or values


def channel_mix(p: Plan, d: Decoder, layer: Layer, x: Rows) -> None:
    """x += value(relu(key(shifted norm(x)))^2)"""
    n = f"{layer.prefix}channel_mix_"
    h = p.keep(blocks.norm(p, d, x, f"{layer.prefix}attn_norm_2"))
    (shifted,) = shift(p, h, f"{n}lerp_k", 1)
    keys = p.matmul(shifted, [f"{n}key"], "up", widths=[layer.n_ff])
    p.matmul(p.activated(keys, layer.n_ff, "relu-squared"), [f"{n}value"], "y", residual=x)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, layer_norm=True, mixed=True)
    width = head_width(p.file, d.n_embd)
    x = p.embedding("token_embd", d.n_embd)
    blocks.renorm(p, d, x, "token_embd_norm")
    first = None
    for layer in d.layers:
        first = time_mix(p, d, layer, x, width, first)
        channel_mix(p, d, layer, x)
    blocks.readout(p, d, x)
