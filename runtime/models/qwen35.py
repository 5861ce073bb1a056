"""Qwen 3.5 and Qwen 3 Next: three layers of gated delta rule for each one of attention with gated heads.

In Qwen 3.5 every n-th head of values shares one of keys; in Qwen 3 Next neighbours do, one matrix gives beta
and alpha, and in older files one gives all else, grouped by heads of keys. With text alone, interleaved rope
turns every pair by one position.
"""

from dataclasses import dataclass

from runtime.errors import ModelError
from runtime.gguf import ModelFile
from runtime.models import blocks, qwen2moe, rope
from runtime.models.hyper import Decoder, Layer, n_nextn
from runtime.models.moe import Experts
from runtime.plan import grouped
from runtime.plan.attention import attend_heads
from runtime.plan.builder import Plan
from runtime.plan.convolution import convolve
from runtime.plan.delta import DeltaHeads, delta_rule, head_gates, normalise_keys
from runtime.plan.gates import gated, normed_and_gated, part_heads
from runtime.plan.values import CacheGroup, Rope, Rows
from runtime.plan.weights import padded

PERIOD = 4


@dataclass(frozen=True, slots=True)
class Mixer:
    """Heads of a delta layer and taps of its convolution; every `period`-th layer has attention instead."""

    heads: DeltaHeads
    taps: int
    period: int

    @classmethod
    def read(cls, f: ModelFile) -> "Mixer":
        """Errors: ModelError for numbers that make no sense."""
        key = f.arch_key
        n_k, n_v, d = (
            f.get_int(key(f"ssm.{name}"), low=1) for name in ("group_count", "time_step_rank", "state_size")
        )
        if f.get_int(key("ssm.inner_size")) != n_v * d:
            raise ModelError(f"{f.path.name}: ssm.inner_size is not that of {n_v} heads of {d} values")
        heads = DeltaHeads(n_k, n_v, d, sharing=n_v // n_k if f.architecture == "qwen3next" else 1)
        heads.check(f.path.name)
        period = f.get_int(key("full_attention_interval"), default=PERIOD, low=1)
        return cls(heads, f.get_int(key("ssm.conv_kernel")), period)

    def attends(self, layer: Layer) -> bool:
        return (layer.index + 1) % self.period == 0


def attention(p: Plan, d: Decoder, layer: Layer, x: Rows, cache: CacheGroup, rotation: Rope) -> None:
    """x += attention(norm(x)) with a gate for every value of every head"""
    n, heads = layer.prefix, layer.heads
    q, k, v = heads.widths
    y = p.matmul(p.rms_norm(x, f"{n}attn_norm", d.eps), [f"{n}attn_q", f"{n}attn_k", f"{n}attn_v"],
                 "gated qkv", widths=[2 * q, k, v])  # fmt: skip
    gates, qkv = part_heads(p, y, heads.n, heads.d_k)
    blocks.norm_heads(p, d, layer, qkv)
    out = attend_heads(p, qkv, cache, heads, rotation)
    p.matmul(gated(p, out, gates), [f"{n}attn_output"], "y", residual=x)


def ungrouped(p: Plan, x: Rows, h: DeltaHeads) -> Rows:
    """Columns q, k, v, z of each head of keys with the heads of values that share it -> all q, k, v, z."""
    out = p.buffer("delta ungrouped", x.width)
    widths = [h.d, h.d, h.sharing * h.d, h.sharing * h.d]
    at = 0
    for i, width in enumerate(widths):
        grouped.copy(p, x, sum(widths[:i]), width, h.n_k, out.columns(at, h.n_k * width), 0)
        at += h.n_k * width
    return out


def recurrence(p: Plan, d: Decoder, m: Mixer, layer: Layer, x: Rows) -> None:
    """x += what the states of the delta rule say, normed and gated"""
    n, h = layer.prefix, m.heads
    n_inputs = h.width + h.n_values
    grouped, together = (p.weights.has(f"{n}{name}.weight") for name in ("ssm_in", "ssm_ba"))
    names, widths = (
        (["ssm_in"], [n_inputs]) if grouped else (["attn_qkv", "attn_gate"], [h.width, h.n_values])
    )
    names += ["ssm_ba"] if together else ["ssm_beta", "ssm_alpha"]
    widths += [2 * h.n_v] if together else [h.n_v, h.n_v]
    y = p.matmul(
        p.rms_norm(x, f"{n}attn_norm", d.eps), [n + name for name in names], "delta in", widths=widths
    )
    beta = y.columns(n_inputs, h.n_v)
    if together:
        gates = head_gates(p, beta, beta.columns(h.sharing, h.n_v), h.sharing, 2 * h.sharing, h, n)
    else:
        gates = head_gates(p, beta, beta.columns(padded(h.n_v), h.n_v), h.n_v, 0, h, n)
    inputs = ungrouped(p, y.columns(0, n_inputs), h) if grouped else y
    qkv, z = inputs.columns(0, h.width), inputs.columns(h.width, h.n_values)
    qkv = convolve(p, qkv, [f"{n}ssm_conv1d"], [h.width], m.taps, "delta qkv", silu=True)
    normalise_keys(p, qkv, h, d.eps)
    out = delta_rule(p, qkv, gates, h)
    source = normed_and_gated(p, out, h.n_v, f"{n}ssm_norm", d.eps, z, "silu")
    p.matmul(source, [f"{n}ssm_out"], "y", residual=x)


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f = p.file
    d, mixer = Decoder.read(f, n_extra=n_nextn(f)), Mixer.read(f)
    experts = Experts.read(f, d) if Experts.any_in(f) else None
    rotation = rope.rotation(p, d.heads.d_k, neox=True)
    for layer, x, cache in blocks.layers(p, d):
        if mixer.attends(layer):
            attention(p, d, layer, x, cache, rotation)
        else:
            recurrence(p, d, mixer, layer, x)
        if experts is None:
            blocks.mlp(p, d, layer, x, pre="post_attention_norm")
        else:
            qwen2moe.mlp(p, d, experts, layer, x, pre="post_attention_norm")
