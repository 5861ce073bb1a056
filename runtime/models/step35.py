"""Step 3.5: windowed layers with other heads and another rotation, gates on heads, clamped experts."""

from runtime.models import blocks, rope
from runtime.models.hyper import Decoder, Layer, local_layers, n_nextn, window_of
from runtime.models.moe import SIGMOID, Experts, mixture, shared
from runtime.plan.builder import Plan
from runtime.plan.values import CacheGroup, Rope, Rows


def full_rotation(p: Plan, d_k: int) -> Rope:
    """Half of what the file says is rotated; divisors beyond that are not used."""
    n_rot = rope.rotated(p.file, d_k) // 2
    scaling = rope.Scaling.read(p.file)
    divisors = rope.divisors(p, 2 * n_rot)[: n_rot // 2]
    turns = scaling.frequencies(n_rot, rope.base_of(p.file), divisors)
    return p.rope(turns, neox=True, magnitude=scaling.magnitude)


def attention(p: Plan, d: Decoder, layer: Layer, x: Rows, cache: CacheGroup, rotation: Rope) -> None:
    n, h = layer.prefix, p.rows(p.keep(p.rms_norm(x, f"{layer.prefix}attn_norm", d.eps)))
    on_heads = blocks.norm_heads if p.weights.has(f"{n}attn_q_norm.weight") else None
    out = blocks.attend(p, d, layer, h, cache, rotation, on_heads=on_heads)
    if p.weights.has(f"{n}attn_gate.weight"):
        gates = p.matmul(h, [f"{n}attn_gate"], "head gates", widths=[layer.heads.n])
        p.gate_heads(out, layer.heads.n, gates)
    p.matmul(out, [f"{n}attn_output"], "y", residual=x)


def mlp(p: Plan, d: Decoder, e: Experts, layer: Layer, x: Rows, limit: float, limit_shared: float) -> None:
    if not e.has(layer):
        return blocks.mlp(p, d, layer, x)
    h = p.keep(p.rms_norm(x, f"{layer.prefix}ffn_norm", d.eps))
    shared(p, e, layer, h, x, limit=limit_shared)
    mixture(p, e, layer, h, x, activation="silu-gate-capped" if limit else "silu-gate", limit=limit)
    return None


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, n_extra = p.file, n_nextn(p.file)
    d = Decoder.read(f, n_extra=n_extra)
    experts = Experts.read(f, d, function=SIGMOID)
    window = window_of(f)
    is_local = local_layers(f, d.n_layer, window, period=4)
    limits, limits_shared = (
        f.get_floats(f.arch_key(f"swiglu_clamp_{kind}"), d.n_layer + n_extra, (0.0,) * d.n_layer)[: d.n_layer]
        for kind in ("exp", "shexp")
    )
    full = full_rotation(p, d.heads.d_k)
    local = rope.plain(p, d.heads.d_k, neox=True, base="rope.freq_base_swa", count="rope.dimension_count_swa")
    caches = blocks.caches(p, is_local, window)
    for layer, x, cache in blocks.layers(p, d, caches):
        i = layer.index
        attention(p, d, layer, x, cache, local if is_local[i] else full)
        mlp(p, d, experts, layer, x, limits[i], limits_shared[i])
