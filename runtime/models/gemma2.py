"""Gemma 2: norms around each branch, soft-capped scores and logits, a window on every other layer."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, local_layers, window_of
from runtime.plan.builder import Plan

N_LAYER_27B = 46  # the 27B model scales queries by its embedding width per head instead of the head size


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file)
    window = window_of(f, default=4096)
    is_local = local_layers(f, d.n_layer, window, period=2)
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    caches = blocks.caches(p, is_local, window)
    scale = (d.n_embd / d.heads.n if d.n_layer == N_LAYER_27B else d.heads.d_k) ** -0.5
    softcap = f.get_float(f.arch_key("attn_logit_softcapping"), default=50.0)
    last = f.get_float(f.arch_key("final_logit_softcapping"), default=30.0)
    for layer, x, cache in blocks.layers(p, d, caches, embedding_scale=d.n_embd**0.5, logit_softcap=last):
        blocks.attention(
            p, d, layer, x, cache, rotation, post="post_attention_norm", scale=scale, softcap=softcap
        )
        blocks.mlp(p, d, layer, x, post="post_ffw_norm", activation="gelu-gate")
