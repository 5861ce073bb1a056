"""Gemma 3n: four streams per token, a low-rank branch beside attention, embeddings for every layer.

The last layers share keys and values; in the first ones most of an MLP's gates are shut.
"""

from runtime.kernels.altup import STREAMS
from runtime.models import blocks, per_layer, rope
from runtime.models.gemma4 import attend
from runtime.models.hyper import Decoder, Layer, local_layers, window_of
from runtime.plan import altup
from runtime.plan.altup import Streams
from runtime.plan.builder import Plan
from runtime.plan.gates import gated
from runtime.plan.values import CacheGroup, Rope, Rows

PERIOD = 5
N_STORING = 20  # layers with keys and values of their own
N_SPARSE = 10
OUTLIERS = 1.6448536269514722  # standard deviations that 5 % of a normal distribution lie above
LAUREL_RANK = 64
SOFTCAP = 30.0


def modalities(p: Plan, d: Decoder, layer: Layer, x: Rows) -> Rows:
    """tanh(router . norm(x) / n_embd): what of each stream's coefficients this token takes"""
    n = layer.prefix
    source = p.rms_norm(x, f"{n}altup_router_norm", d.eps)
    y = p.matmul(source, [f"{n}altup_router"], "modalities", widths=[STREAMS])
    p.scale(y, 1.0 / d.n_embd, softcap=1.0)
    return y


def attention(p: Plan, d: Decoder, layer: Layer, x: Rows, cache: CacheGroup, rotation: Rope) -> Rows:
    """(x + norm(attention(h)) + h + norm(laurel(h))) / sqrt(2) with h = norm(x)"""
    n, shared = layer.prefix, layer.index >= N_STORING
    h = p.keep(p.rms_norm(x, f"{n}attn_norm", d.eps), "branch")
    y = attend(p, d, layer, p.rows(h), cache, rotation, shared=shared)
    low = p.matmul(h, [f"{n}laurel_l"], "laurel", widths=[LAUREL_RANK])
    p.rms_norm_add(
        p.matmul(low, [f"{n}laurel_r"], "laurel y", widths=[d.n_embd]), f"{n}laurel_post_norm", d.eps, h
    )
    p.rms_norm_add(y, f"{n}post_attention_norm", d.eps, h)
    p.add(x, h)
    p.scale(h, 0.5**0.5)
    return h


def mlp(p: Plan, d: Decoder, layer: Layer, x: Rows) -> None:
    """x += norm(down(gelu(gate) * up)), the gate being 0 but for outliers in the first layers"""
    n = layer.prefix
    names = [f"{n}ffn_gate", f"{n}ffn_up"]
    hidden = p.matmul(p.rms_norm(x, f"{n}ffn_norm", d.eps), names, "gate_up", widths=[layer.n_ff] * 2)
    if layer.index < N_SPARSE:
        altup.keep_outliers(p, hidden.columns(0, layer.n_ff), OUTLIERS)
    y = p.matmul(p.activated(hidden, layer.n_ff, "gelu-gate"), [f"{n}ffn_down"], "y", widths=[d.n_embd])
    p.rms_norm_add(y, f"{n}post_ffw_norm", d.eps, x)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file)
    is_local = local_layers(f, d.n_layer, window_of(f), PERIOD)
    everywhere = rope.rotation(p, d.heads.d_k, neox=True)
    local = rope.plain(p, d.heads.d_k, neox=True, base="rope.freq_base_swa")
    streams = Streams.make(p, d.n_embd)
    active = p.embedding("token_embd", d.n_embd, d.n_embd**0.5, streams.active)
    parts = per_layer.embed(p, d, active, per_layer.width_of(f))
    altup.project(p, streams, "altup_proj", of_active=True)
    for layer, cache in zip(d.layers, blocks.caches(p, is_local, window_of(f)), strict=True):
        n = layer.prefix
        altup.predict(p, streams, modalities(p, d, layer, active), f"{n}altup_predict_coef")
        y = attention(p, d, layer, active, cache, local if is_local[layer.index] else everywhere)
        mlp(p, d, layer, y)
        altup.correct(p, streams, y, modalities(p, d, layer, y), f"{n}altup_correct_coef")
        scale = Rows(p.weights.vector(f"{n}altup_correct_scale.weight", widths=[d.n_embd]), 0, d.n_embd)
        per_layer.add(p, d, parts, layer, gated(p, active, scale, "plain"), *streams.others)
    altup.project(p, streams, "altup_unembd_proj", of_active=False)
    for stream in streams.others:
        p.add(stream, active)
    p.scale(active, 1.0 / STREAMS)
    blocks.readout(p, d, active, softcap=f.get_float(f.arch_key("final_logit_softcapping"), default=SOFTCAP))
