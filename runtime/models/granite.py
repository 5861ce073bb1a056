"""Granite: llama with multipliers on embeddings, on what branches add, on q . k, and under the logits.

The variant with experts (``granitemoe``) may have shared ones too.
"""

from dataclasses import dataclass

from runtime.errors import ModelError
from runtime.gguf import ModelFile
from runtime.models import blocks, rope
from runtime.models.hyper import Decoder
from runtime.models.moe import Experts, moe
from runtime.plan.builder import Plan

SMALLEST_DIVISOR = 1e-30


@dataclass(frozen=True, slots=True)
class Multipliers:
    """`attention` 0 stands for the usual scale; logits are divided by `logits`."""

    embedding: float
    residual: float
    attention: float
    logits: float

    @classmethod
    def read(cls, f: ModelFile) -> "Multipliers":
        names = (
            ("embedding_scale", 1.0),
            ("residual_scale", 1.0),
            ("attention.scale", 0.0),
            ("logit_scale", 1.0),
        )
        self = cls(*(f.get_float(f.arch_key(name), default=default) for name, default in names))
        if abs(self.logits) < SMALLEST_DIVISOR:
            raise ModelError(
                f"{f.path.name}: {f.arch_key('logit_scale')} is {self.logits}, too small to divide by"
            )
        return self


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    f, d = p.file, Decoder.read(p.file)
    m = Multipliers.read(f)
    experts = Experts.read(f, d) if f.get_int(f.arch_key("expert_count"), default=0) else None
    rotates = f.get_bool(f.arch_key("rope.scaling.finetuned"), default=True)
    rotation = rope.rotation(p, d.heads.d_k, neox=False) if rotates else None
    cache = p.cache_group("full")
    x = blocks.embed(p, d, scale=m.embedding)
    for layer in d.layers:
        blocks.attention(p, d, layer, x, cache, rotation, scale=m.attention, residual_scale=m.residual)
        if experts:
            moe(p, d, experts, layer, x, scale=m.residual)
        else:
            blocks.mlp(p, d, layer, x, residual_scale=m.residual)
    blocks.head(p, d, x, scale=1.0 / m.logits)
