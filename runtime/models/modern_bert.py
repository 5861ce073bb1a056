"""ModernBERT: norms before each branch, rope, two windowed layers after each one that sees everything."""

from runtime.kernels import attention_layer as al
from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, local_layers, window_of
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file, layer_norm=True)
    window = window_of(f)
    is_local = local_layers(f, d.n_layer, window, period=3, dense_first=True)
    everywhere = rope.rotation(p, d.heads.d_k, neox=True)
    local = rope.plain(p, d.heads.d_k, neox=True, base="rope.freq_base_swa") if any(is_local) else everywhere
    caches = blocks.caches(p, is_local, window, al.SYMMETRIC)
    x = p.embedding("token_embd", d.n_embd)
    blocks.renorm(p, d, x, "token_embd_norm")
    for layer, cache in zip(d.layers, caches, strict=True):
        pre = "attn_norm" if p.weights.has(f"{layer.prefix}attn_norm.weight") else ""
        rotation = local if is_local[layer.index] else everywhere
        blocks.attention(p, d, layer, x, cache, rotation, pre=pre)
        blocks.mlp(p, d, layer, x, activation="gelu-gate")
    p.hidden_states(p.keep(blocks.norm(p, d, x, "output_norm")))
