"""Gemma 3: norms around each branch and on heads, five windowed layers for each one that sees everything.

EmbeddingGemma (``gemma-embedding``) has the same layers, in which every token sees those after it too.
"""

from runtime.kernels import attention_layer as al
from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, local_layers, window_of
from runtime.plan.builder import Plan

N_LAYER_27B = 62  # the 27B model scales queries by its embedding width per head instead of the head size


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file)
    window = window_of(f)
    is_local = local_layers(f, d.n_layer, window, period=6)
    everywhere = rope.rotation(p, d.heads.d_k, neox=True)
    local = rope.plain(p, d.heads.d_k, neox=True, base="rope.freq_base_swa") if any(is_local) else everywhere
    mask = al.SYMMETRIC if f.architecture == "gemma-embedding" else al.CAUSAL
    caches = blocks.caches(p, is_local, window, mask)
    scale = (d.n_embd / d.heads.n if d.n_layer == N_LAYER_27B else d.heads.d_k) ** -0.5
    softcap = f.get_float(f.arch_key("final_logit_softcapping"), default=0.0)
    for layer, x, cache in blocks.layers(p, d, caches, embedding_scale=d.n_embd**0.5, logit_softcap=softcap):
        blocks.attention(
            p, d, layer, x, cache, local if is_local[layer.index] else everywhere,
            post="post_attention_norm", on_heads=blocks.norm_heads, scale=scale,
        )  # fmt: skip
        blocks.mlp(p, d, layer, x, post="post_ffw_norm", activation="gelu-gate")
