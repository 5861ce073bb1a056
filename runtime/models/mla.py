"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): all heads share one low-rank row per position.

    latent  = norm(first columns of kv_a x), rotated k = rope(the others)
    q       = q_b norm(q_a x), or q x: per head [nope | rope]
    score   = (k_b^T q_nope, rope(q_rope)) . (latent, rotated k)
    output  = v_b of the weighted latents, per head

So it is absorbed: keys and values of a head are never spelled out, and a position costs one row of
``rank + n_rot`` values. Files of older converters hold k_b and v_b as one matrix; it is taken apart at load.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile
from runtime.kernels.simd import LANES
from runtime.models import rope
from runtime.models.hyper import Decoder, Layer
from runtime.plan import grouped, latent
from runtime.plan.builder import Plan
from runtime.plan.latent import Keys
from runtime.plan.values import LatentGroup, Rope, Rows, Source
from runtime.plan.weights import Panels, padded

MAX_WIDTH = 1 << 16  # values of a head, a rank: beyond all sense

Select = Callable[[Layer, Source, Source, Keys], None]
"""Of a layer, its normed input, what its queries were made from, and the keys that they would see."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of latent attention: `rank` of the latent, `q_rank` of queries (0: they come from x directly),
    per head `nope` dims without and `n_rot` with rotation, and `d_v` of values."""

    n_head: int
    rank: int
    q_rank: int
    nope: int
    n_rot: int
    d_v: int

    @property
    def d(self) -> int:
        """Values of a cached row, and of a query head once absorbed."""
        return self.rank + self.n_rot

    @property
    def d_q(self) -> int:
        return self.nope + self.n_rot

    @classmethod
    def read(cls, f: ModelFile, n_head: int) -> "Latent":
        """Errors: ModelError for sizes that make no sense, UnsupportedModel for those beyond the kernels."""

        key = f.arch_key
        d_q, d_v = (
            f.get_int(key(f"attention.{kind}_length_mla"), default=0)
            or f.get_int(key(f"attention.{kind}_length"))
            for kind in ("key", "value")
        )
        rank, n_rot = f.get_int(key("attention.kv_lora_rank")), f.get_int(key("rope.dimension_count"))
        q_rank = f.get_int(key("attention.q_lora_rank"), default=0)
        self = cls(n_head, rank, q_rank, d_q - n_rot, n_rot, d_v)
        sizes = self.rank, self.nope, self.n_rot, self.d_v
        if not all(1 <= n <= MAX_WIDTH for n in sizes) or not 0 <= self.q_rank <= MAX_WIDTH:
            raise ModelError(f"{f.path.name}: latent attention of {self} makes no sense")
        if any(n % LANES for n in sizes):
            raise UnsupportedModel(f"{f.path.name}: latent attention of {self} is not whole {LANES}s")
        return self


def rotation(p: Plan, m: Latent, *, tenths: bool, neox: bool = False) -> tuple[Rope, float]:
    """The rotation of queries and keys, and the factor of scores that yarn brings with it.

    Cosine and sine keep their magnitude; scores are multiplied by the square of ``1 + 0.1 m ln(factor)``.
    Files of some architectures hold a tenth of m (`tenths`).
    """
    f, scaling = p.file, rope.Scaling.read(p.file)
    number = f.get_float(f.arch_key("rope.scaling.yarn_log_multiplier"), default=0.0)
    attention_factor = f.get_float(f.arch_key("rope.scaling.attn_factor"), default=1.0)
    share = number if tenths else 0.1 * number
    magnitude = attention_factor * (1.0 + share * math.log(scaling.factor))
    turns = scaling.frequencies(m.n_rot, rope.base_of(f), rope.divisors(p, m.n_rot))
    return p.rope(turns, neox=neox, magnitude=attention_factor), magnitude * magnitude


def project(p: Plan, d: Decoder, m: Latent, layer: Layer, h: Source) -> tuple[Rows, Rows, Source]:
    """(queries [heads][nope | rope], latents [rank | rope], what queries were made from), not rotated yet."""
    n = layer.prefix
    width = m.n_head * m.d_q
    if not m.q_rank:
        both = p.matmul(h, [f"{n}attn_q", f"{n}attn_kv_a_mqa"], "q_kv", widths=[width, m.d])
        q, kv, source = both.columns(0, width), both.columns(padded(width), m.d), h
    else:
        low = p.matmul(h, [f"{n}attn_q_a", f"{n}attn_kv_a_mqa"], "q_kv_a", widths=[m.q_rank, m.d])
        kv = low.columns(padded(m.q_rank), m.d)
        source = p.rms_norm(low.columns(0, m.q_rank), f"{n}attn_q_a_norm", d.eps)
        q = p.matmul(source, [f"{n}attn_q_b"], "q", widths=[width])
    normed = p.rms_norm(kv.columns(0, m.rank), f"{n}attn_kv_a_norm", d.eps)
    assert normed.keep is not None
    normed.keep(kv.columns(0, m.rank))
    return q, kv, source


def attention(
    p: Plan, d: Decoder, m: Latent, layer: Layer, x: Rows, group: LatentGroup, rotation: Rope | None,
    scale: float, select: Select | None = None,
) -> None:  # fmt: skip
    """x += attention(norm(x)). `scale` is that of scores beside ``d_q ** -0.5``.

    `select` may narrow down what queries see.
    """
    n = layer.prefix
    h = p.rms_norm(x, f"{n}attn_norm", d.eps)
    q, kv, source = project(p, d, m, layer, h)
    if rotation is not None:
        p.rotate_columns(q, m.nope, m.n_head, rotation)
        p.rotate_columns(kv, m.rank, 1, rotation)
    keys = latent.paged_keys(p, group, m.d)
    latent.store(p, keys, kv)
    if select is not None:
        select(layer, h, source, keys)
    k_b, v_b = _heads(p, m, n)
    absorbed = p.buffer("absorbed", m.n_head * m.d)
    grouped.matmul(p, q, m.nope, k_b, m.n_head, absorbed)
    grouped.copy(p, q, m.nope, m.n_rot, m.n_head, absorbed, m.rank)
    seen = latent.attend(p, absorbed, m.n_head, m.rank, [keys], scale=scale * m.d_q**-0.5)
    out = p.buffer("heads", m.n_head * m.d_v)
    grouped.matmul(p, seen, m.rank, v_b, m.n_head, out)
    p.matmul(out, [f"{n}attn_output"], "y", residual=x)


def _heads(p: Plan, m: Latent, prefix: str) -> tuple[Panels, Panels]:
    """k_b [heads][rank][nope] and v_b [heads][d_v][rank]."""
    both = f"{prefix}attn_kv_b.weight"
    if p.weights.has(f"{prefix}attn_k_b.weight"):
        p.weights.ignore(both)  # some files have it beside its parts
        k_b = p.weights.grouped_panels(f"{prefix}attn_k_b.weight", m.nope, m.rank, m.n_head)
        return k_b, p.weights.grouped_panels(f"{prefix}attn_v_b.weight", m.rank, m.d_v, m.n_head)
    tensor = p.weights.matrix_info(both, m.rank, m.n_head * (m.nope + m.d_v))
    heads = p.weights.matrix(both, m.rank).reshape(m.n_head, m.nope + m.d_v, m.rank)
    kind = tensor.type.name if tensor.type.name in ("F32", "BF16") else "F16"
    k_b = p.weights.packed_matrices(kind, np.swapaxes(heads[:, : m.nope], 1, 2), both)
    return k_b, p.weights.packed_matrices(kind, heads[:, m.nope :], both)
