"""Embeddings of their own for every layer, as Gemma 3n and Gemma 4 have them.

A token has a row of one vector per layer, and its ordinary embedding gives another one; both are added. A
layer lets its part through as far as its hidden state opens a gate.
"""

from dataclasses import dataclass

from runtime.gguf import ModelFile
from runtime.models.hyper import Decoder, Layer
from runtime.plan.builder import Plan
from runtime.plan.gates import gated
from runtime.plan.values import Rows, Source


@dataclass(frozen=True, slots=True)
class PerLayer:
    """Rows of `width` values for each layer."""

    rows: Rows
    width: int

    def of(self, layer: Layer) -> Rows:
        return self.rows.columns(layer.index * self.width, self.width)


def width_of(f: ModelFile) -> int:
    """Values that a token has for each layer, 0 for a model without."""
    return f.get_int(f.arch_key("embedding_length_per_layer_input"), default=0, high=2**20)


def embed(p: Plan, d: Decoder, x: Rows, width: int) -> PerLayer:
    """(sqrt(width) * the token's row + norm(projection of x / sqrt(n_embd))) / sqrt(2)

    `x` is the embedding times sqrt(n_embd).
    """
    n = width * d.n_layer
    rows = p.embedding("per_layer_token_embd", n, (width / 2) ** 0.5, p.buffer("per layer", n))
    y = p.matmul(x, ["per_layer_model_proj"], "per layer projected", widths=[n])
    # norming y / sqrt(n_embd) is norming y with an eps that is larger by as much as its squares
    p.head_norm(y, d.n_layer, width, 0, width, d.eps * d.n_embd, "per_layer_proj_norm")
    p.add(y, rows, 0.5**0.5)
    return PerLayer(rows, width)


def add(p: Plan, d: Decoder, e: PerLayer, layer: Layer, h: Source | Rows, *residuals: Rows) -> None:
    """residuals += norm(proj(gelu(inp_gate h) * the layer's part))"""
    n = layer.prefix
    gate = p.matmul(h, [f"{n}inp_gate"], "per layer gate", widths=[e.width])
    y = p.matmul(gated(p, e.of(layer), gate, "gelu"), [f"{n}proj"], "y", widths=[d.n_embd])
    for residual in residuals:
        p.rms_norm_add(y, f"{n}post_norm", d.eps, residual)
