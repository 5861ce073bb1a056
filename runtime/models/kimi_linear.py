"""Kimi Linear: delta rules that decay channel by channel, in some layers latent attention instead.

Layers for which the file counts no heads of keys have a delta rule. Queries, keys and values pass
convolutions of their own; decays and output gates come from low-rank products.
"""

from runtime.gguf import ModelFile
from runtime.models import blocks, mla
from runtime.models.hyper import Decoder, Layer
from runtime.models.moe import SIGMOID, Experts, moe
from runtime.plan.builder import Plan
from runtime.plan.convolution import convolve
from runtime.plan.delta import DeltaHeads, channel_gates, delta_rule, normalise_keys
from runtime.plan.gates import normed_and_gated
from runtime.plan.values import Rows


def heads_of(f: ModelFile, d: Decoder) -> DeltaHeads:
    """Errors: ModelError for numbers that make no sense."""
    heads = DeltaHeads(d.heads.n, d.heads.n, f.get_int(f.arch_key("kda.head_dim")))
    heads.check(f.path.name)
    return heads


def recurrence(p: Plan, d: Decoder, h: DeltaHeads, taps: int, layer: Layer, x: Rows) -> None:
    """x += what the states of the delta rule say, normed and gated"""
    n, width = layer.prefix, h.n_values
    names = [f"{n}{name}" for name in ("attn_q", "attn_k", "attn_v", "ssm_f_a", "ssm_g_a", "ssm_beta")]
    widths = [width, width, width, h.d, h.d, h.n_v]
    y = p.matmul(p.rms_norm(x, f"{n}attn_norm", d.eps), names, "delta in", widths=widths)
    qkv = y.columns(0, h.width)
    low_f, low_g = y.columns(h.width, h.d), y.columns(h.width + h.d, h.d)
    beta = y.columns(h.width + 2 * h.d, h.n_v)
    f = p.matmul(low_f, [f"{n}ssm_f_b"], "delta decay", widths=[width])
    gate = p.matmul(low_g, [f"{n}ssm_g_b"], "delta gate", widths=[width])
    convolutions = [f"{n}ssm_conv1d_{name}" for name in "qkv"]
    qkv = convolve(p, qkv, convolutions, [width] * 3, taps, "delta qkv", silu=True)
    normalise_keys(p, qkv, h, d.eps)
    out = delta_rule(p, qkv, channel_gates(p, beta, f, qkv, h, n), h, per_channel=True)
    source = normed_and_gated(p, out, h.n_v, f"{n}ssm_norm", d.eps, gate, "sigmoid")
    p.matmul(source, [f"{n}attn_output"], "y", residual=x)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file, mixed=True)
    heads, latent = heads_of(f, d), mla.Latent.read(f, d.heads.n)
    taps = f.get_int(f.arch_key("ssm.conv_kernel"))
    experts = Experts.read(f, d, function=SIGMOID) if Experts.any_in(f) else None
    group = p.latent_group("latent")
    x = p.embedding("token_embd", d.n_embd)
    for layer in d.layers:
        if layer.attends:
            mla.attention(p, d, latent, layer, x, group, None, 1.0)
        else:
            recurrence(p, d, heads, taps, layer, x)
        moe(p, d, experts, layer, x)
    blocks.readout(p, d, x)
