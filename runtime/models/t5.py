"""T5's encoder: RMS norm before each branch, attention without scale but with a bias by distance.

The decoder, which a file may have as well, is not run: the model gives embeddings.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from runtime.errors import UnsupportedModel
from runtime.kernels import attention_layer as al
from runtime.models import blocks
from runtime.models.hyper import Decoder
from runtime.plan.builder import FloatArray, Plan

MAX_DISTANCE = 128


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file)
    n_buckets = f.get_int(f.arch_key("attention.relative_buckets_count"), low=4, high=2 * MAX_DISTANCE)
    table = p.weights.lines("enc.blk.0.attn_rel_b.weight", d.heads.n, n_buckets)
    bias = p.distance_bias(d.heads.n, biases(table))
    cache = p.cache_group("full", mask=al.SYMMETRIC)
    x = p.embedding("token_embd", d.n_embd)
    for layer in (replace(layer, prefix=f"enc.{layer.prefix}") for layer in d.layers):
        if not p.weights.has(f"{layer.prefix}ffn_gate.weight"):
            raise UnsupportedModel(f"{f.path.name}: T5 models whose MLPs have no gates are not supported")
        h = blocks.norm(p, d, x, f"{layer.prefix}attn_norm")
        out = blocks.attend(p, d, layer, h, cache, None, scale=1.0, bias=bias)
        p.matmul(out, [f"{layer.prefix}attn_o"], "y", residual=x)
        blocks.mlp(p, d, layer, x, activation="gelu-gate")
    p.hidden_states(p.keep(blocks.norm(p, d, x, "enc.output_norm")))


def biases(table: npt.NDArray[np.float32]) -> Callable[[FloatArray], FloatArray]:
    """What each head adds by distance, from a table float32 [n_buckets, heads]."""
    return lambda distances: table[buckets(distances, len(table))].T.astype(np.float64)


def buckets(distances: FloatArray, n_buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each distance ``key - query`` (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

    Half of them are for keys before the query. Of each half, one half is for a single distance each, the
    others grow exponentially up to `MAX_DISTANCE`, and the last has all beyond.
    """
    half = n_buckets // 2
    exact = half // 2
    away = np.abs(distances)
    share = np.log(np.maximum(away, 1) / exact) / math.log(MAX_DISTANCE / exact)
    far = np.minimum(exact + np.floor(share * (half - exact)), half - 1)
    return (np.where(distances > 0, half, 0) + np.where(away < exact, away, far)).astype(np.int64)
