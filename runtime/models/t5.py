"""T5's encoder: RMS norm before each branch, attention without scale but with a bias by distance.

The decoder, which a file may have as well, is not run: the model gives embeddings.
"""

from dataclasses import replace

from runtime.errors import UnsupportedModel
from runtime.kernels import attention_layer as al
from runtime.models import bias, blocks
from runtime.models.hyper import Decoder
from runtime.plan.builder import Plan


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file)
    n_buckets = f.get_int(f.arch_key("attention.relative_buckets_count"), low=4, high=2 * bias.MAX_DISTANCE)
    table = p.weights.lines("enc.blk.0.attn_rel_b.weight", d.heads.n, n_buckets)
    relative = bias.by_distance(p, d.heads.n, bias.bucketed(table))
    cache = p.cache_group("full", mask=al.SYMMETRIC)
    x = p.embedding("token_embd", d.n_embd)
    for layer in (replace(layer, prefix=f"enc.{layer.prefix}") for layer in d.layers):
        if not p.weights.has(f"{layer.prefix}ffn_gate.weight"):
            raise UnsupportedModel(f"{f.path.name}: T5 models whose MLPs have no gates are not supported")
        h = blocks.norm(p, d, x, f"{layer.prefix}attn_norm")
        out = blocks.attend(p, d, layer, h, cache, None, scale=1.0, bias=relative)
        p.matmul(out, [f"{layer.prefix}attn_o"], "y", residual=x)
        blocks.mlp(p, d, layer, x, activation="gelu-gate")
    p.hidden_states(p.keep(blocks.norm(p, d, x, "enc.output_norm")))
