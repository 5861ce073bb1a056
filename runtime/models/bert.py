"""BERT and its kin: every token sees every other, norms come after each branch, hidden states are the result.

They differ in how they know positions: learned ones (``bert``), rope (``nomic-bert``) or a bias by distance
(``jina-bert-v2``, ALiBi). Only the first kind of token, a sentence on its own, is used.
"""

from runtime.kernels import attention_layer as al
from runtime.models import bias, blocks, rope
from runtime.models.hyper import Decoder, Layer
from runtime.plan.builder import Plan
from runtime.plan.values import Rows

ACTIVATIONS = {"bert": "gelu", "nomic-bert": "silu-gate", "jina-bert-v2": "gelu-gate"}


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    kind, d = p.file.architecture, Decoder.read(p.file, layer_norm=True)
    rotation = rope.rotation(p, d.heads.d_k, neox=True) if kind == "nomic-bert" else None
    slopes = bias.by_distance(p, d.heads.n, bias.alibi(d.heads.n)) if kind == "jina-bert-v2" else None
    x = p.embedding("token_embd", d.n_embd)
    if p.weights.has("token_types.weight"):
        p.add_line(x, "token_types", 0)
    if kind == "bert":
        p.add_positions(x, "position_embd")
    blocks.renorm(p, d, x, "token_embd_norm")
    cache = p.cache_group("full", mask=al.SYMMETRIC)
    for layer in d.layers:
        blocks.attention(p, d, layer, x, cache, rotation, pre="", on_heads=norm_projections, bias=slopes)
        blocks.renorm(p, d, x, f"{layer.prefix}attn_output_norm")
        blocks.mlp(p, d, layer, x, pre="", activation=ACTIVATIONS[kind])
        blocks.renorm(p, d, x, f"{layer.prefix}layer_output_norm")
    p.hidden_states(x)


def norm_projections(p: Plan, d: Decoder, layer: Layer, qkv: Rows) -> None:
    """Layer norm of all queries of a row together, and of all its keys, where the file has such norms."""
    q_width, k_width, _ = layer.heads.widths
    for name, at, width in (("attn_q_norm", 0, q_width), ("attn_k_norm", q_width, k_width)):
        if p.weights.has(f"{layer.prefix}{name}.weight"):
            blocks.renorm(p, d, qkv.columns(at, width), f"{layer.prefix}{name}")
