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
    experts = Experts.read(f, d) if Experts.any_in(f) else None
    rotates = f.get_bool(f.arch_key("rope.scaling.finetuned"), default=True)
    rotation = rope.rotation(p, d.heads.d_k, neox=False) if rotates else None
    for layer, x, cache in blocks.layers(p, d, embedding_scale=m.embedding, logit_scale=1.0 / m.logits):
        blocks.attention(p, d, layer, x, cache, rotation, scale=m.attention, residual_scale=m.residual)
        moe(p, d, experts, layer, x, scale=m.residual)
