"""Pieces of a forward pass that architectures share.

A model file puts them together, layer by layer, and says where they differ from the plain form: norm before
each branch, whose result is added to the residual stream.
"""

from collections.abc import Callable, Iterator, Sequence

from runtime.errors import ModelError
from runtime.kernels import attention_layer as al
from runtime.models.hyper import Decoder, Layer
from runtime.plan.attention import attend_heads
from runtime.plan.builder import Plan
from runtime.plan.values import Bias, CacheGroup, Rope, Rows, Source

OnHeads = Callable[[Plan, Decoder, Layer, Rows], None]
"""What a model does to the rows of q, k and v heads of a layer before they are rotated and stored."""


def norm(p: Plan, d: Decoder, x: Rows, name: str) -> Source:
    """The kind of norm that the model has."""
    return p.layer_norm(x, name, d.eps) if d.layer_norm else p.rms_norm(x, name, d.eps)


def renorm(p: Plan, d: Decoder, x: Rows, name: str) -> None:
    """x = norm(x)"""
    source = norm(p, d, x, name)
    assert source.keep is not None
    source.keep(x)


def qkv(p: Plan, layer: Layer, x: Source | Rows) -> Rows:
    """Query, key and value projections, stored apart or as one matrix."""
    n, widths = layer.prefix, layer.heads.widths
    if p.weights.has(f"{n}attn_qkv.weight"):
        return p.matmul(x, [f"{n}attn_qkv"], "qkv", widths=[sum(widths)])
    return p.matmul(x, [f"{n}attn_q", f"{n}attn_k", f"{n}attn_v"], "qkv", widths=widths)


def norm_heads(p: Plan, d: Decoder, layer: Layer, qkv: Rows) -> None:
    """RMS norm of each query and key head."""
    h, n = layer.heads, layer.prefix
    p.head_norm(qkv, h.n, h.d_k, h.n_kv, h.d_k, d.eps, f"{n}attn_q_norm", f"{n}attn_k_norm")


def norm_projections(p: Plan, d: Decoder, layer: Layer, qkv: Rows) -> None:
    """RMS norm of all queries of a row together, and of all its keys."""
    n, (q_width, k_width, _) = layer.prefix, layer.heads.widths
    p.head_norm(qkv, 1, q_width, 1, k_width, d.eps, f"{n}attn_q_norm", f"{n}attn_k_norm")


def attend(
    p: Plan, d: Decoder, layer: Layer, h: Source | Rows, cache: CacheGroup, rotation: Rope | None, *,
    on_heads: OnHeads | None = None, scale: float = 0.0, softcap: float = 0.0, sinks: str = "",
    bias: Bias | None = None,
) -> Rows:  # fmt: skip
    """What the heads say, before the output projection."""
    heads = qkv(p, layer, h)
    if on_heads is not None:
        on_heads(p, d, layer, heads)
    return attend_heads(
        p, heads, cache, layer.heads, rotation, scale=scale, softcap=softcap,
        sinks=layer.prefix + sinks if sinks else "", bias=bias,
    )  # fmt: skip


def attention(
    p: Plan, d: Decoder, layer: Layer, x: Rows, cache: CacheGroup, rotation: Rope | None, *,
    pre: str = "attn_norm", post: str = "", on_heads: OnHeads | None = None, scale: float = 0.0,
    softcap: float = 0.0, sinks: str = "", residual_scale: float = 1.0, bias: Bias | None = None,
) -> None:  # fmt: skip
    """x += residual_scale * post(attention(pre(x))); `pre` and `post` name norms, "" for none."""
    n = layer.prefix
    h = norm(p, d, x, n + pre) if pre else x
    out = attend(
        p, d, layer, h, cache, rotation, on_heads=on_heads, scale=scale, softcap=softcap, sinks=sinks,
        bias=bias,
    )  # fmt: skip
    if post:
        y = p.matmul(out, [f"{n}attn_output"], "y", widths=[d.n_embd])
        p.rms_norm_add(y, n + post, d.eps, x)
    else:
        p.matmul(out, [f"{n}attn_output"], "y", residual=x, scale=residual_scale)


def feed_forward(
    p: Plan, layer: Layer, h: Source | Rows, *, activation: str = "silu-gate", n_ff: int = 0,
    suffix: str = "", limit: float = 0.0, residual: Rows | None = None, scale: float = 1.0,
) -> Rows:  # fmt: skip
    """``down(activation(gate h, up h))``, or ``down(activation(up h))`` for activations without a gate.

    Where a gate is needed and the file has no matrix for it, it is the first half of `up`. `suffix` tells
    shared experts' tensors from a plain MLP's; `n_ff` is by default the layer's. With `residual` see
    `Plan.matmul`.
    """
    n, width = layer.prefix, n_ff or layer.n_ff
    gate, up, down = (f"{n}ffn_{part}{suffix}" for part in ("gate", "up", "down"))
    if "gate" not in activation:
        hidden = p.matmul(h, [up], "up", widths=[width])
    elif p.weights.has(f"{gate}.weight"):
        hidden = p.matmul(h, [gate, up], "gate_up", widths=[width, width])
    else:
        hidden = p.matmul(h, [up], "gate_up", widths=[2 * width])
    return p.matmul(
        p.activated(hidden, width, activation, limit), [down], "y", residual=residual, scale=scale
    )


def mlp(
    p: Plan, d: Decoder, layer: Layer, x: Rows, *, pre: str = "ffn_norm", post: str = "",
    activation: str = "silu-gate", residual_scale: float = 1.0,
) -> None:  # fmt: skip
    """x += residual_scale * post(feed_forward(pre(x))); `pre` and `post` name norms, "" for none."""
    h = norm(p, d, x, layer.prefix + pre) if pre else x
    if post:
        p.rms_norm_add(feed_forward(p, layer, h, activation=activation), layer.prefix + post, d.eps, x)
    else:
        feed_forward(p, layer, h, activation=activation, residual=x, scale=residual_scale)


def parallel(
    p: Plan, d: Decoder, layer: Layer, x: Rows, cache: CacheGroup, rotation: Rope | None, *,
    activation: str = "silu-gate",
) -> None:  # fmt: skip
    """x += attention(h) + feed_forward(h) with h = norm(x)"""
    h = p.rows(p.keep(norm(p, d, x, f"{layer.prefix}attn_norm")))
    out = attend(p, d, layer, h, cache, rotation)
    p.matmul(out, [f"{layer.prefix}attn_output"], "y", residual=x)
    feed_forward(p, layer, h, activation=activation, residual=x)


def caches(p: Plan, is_local: Sequence[bool], window: int, mask: int = al.CAUSAL) -> list[CacheGroup]:
    """For each layer its cache group: one for layers that see everything, one for those with a window."""
    if any(is_local) and window < 1:
        raise ModelError(f"{p.file.path.name}: layers with a window of {window} positions make no sense")
    groups = {
        local: p.cache_group("window", window, mask) if local else p.cache_group("full", mask=mask)
        for local in sorted(set(is_local))
    }
    return [groups[local] for local in is_local]


def readout(
    p: Plan, d: Decoder, x: Rows, *, last_norm: str = "output_norm", scale: float = 1.0, softcap: float = 0.0
) -> None:
    """Final norm and head, which is the embedding where the file has none of its own.

    A model for embeddings ends with the norm.
    """
    if p.options.embeddings:
        p.hidden_states(p.keep(norm(p, d, x, last_norm)))
        return
    name = "output" if p.weights.has("output.weight") else "token_embd"
    p.head(norm(p, d, p.wanted(x), last_norm), name, scale=scale, softcap=softcap)


def layers(
    p: Plan, d: Decoder, caches: Sequence[CacheGroup] = (), *, embedding_scale: float = 1.0,
    positions: str = "", last_norm: str = "output_norm", logit_scale: float = 1.0, logit_softcap: float = 0.0,
) -> Iterator[tuple[Layer, Rows, CacheGroup]]:  # fmt: skip
    """The way through a decoder: (layer, residual stream, its cache group) for each layer.

    The embedding comes before the first, with the table of learned positions that `positions` may name;
    `readout` after the last. Without `caches` all layers see everything.
    """
    x = p.embedding("token_embd", d.n_embd, embedding_scale)
    if positions:
        p.add_positions(x, positions)
    for layer, cache in zip(d.layers, caches or [p.cache_group("full")] * d.n_layer, strict=True):
        yield layer, x, cache
    readout(p, d, x, last_norm=last_norm, scale=logit_scale, softcap=logit_softcap)
