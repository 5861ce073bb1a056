"""DeepSeek V3.2 and GLM 5 (``glm-dsa``): DeepSeek V3 with an index that says which positions queries see.

Index queries come from the low-rank queries, index keys and the weights of index heads from the layer's
input. The two families rotate index heads by other pairs. In GLM 5 a layer may use the selection of the last
one that made one.
"""

from dataclasses import dataclass

import numpy as np

from runtime.errors import ModelError
from runtime.gguf import ModelFile
from runtime.models import blocks, mla
from runtime.models.hyper import Decoder, Layer, n_nextn
from runtime.models.moe import SIGMOID, Experts, moe
from runtime.plan import indexer, latent
from runtime.plan.builder import Plan
from runtime.plan.latent import Keys
from runtime.plan.values import LatentGroup, Rope, Source

TENSORS = ("attn_k.weight", "attn_q_b.weight", "k_norm.weight", "k_norm.bias", "proj.weight")
KEY_NORM_EPS = {"deepseek32": 1e-6, "glm-dsa": 0.0}
LONG_CONTEXT = 1 << 20  # of GLM 5.2, the first whose layers share selections; its files may not say so


@dataclass(frozen=True, slots=True)
class Index:
    """The indexer's heads, their dims, how many positions it selects, and in which layers."""

    n_head: int
    d: int
    top_k: int
    is_full: tuple[bool, ...]

    @classmethod
    def read(cls, f: ModelFile, n_layer: int) -> "Index":
        """Errors: ModelError for numbers that make no sense."""
        key = f.arch_key
        self = cls(
            f.get_int(key("attention.indexer.head_count")), f.get_int(key("attention.indexer.key_length")),
            f.get_int(key("attention.indexer.top_k")), selecting_layers(f, n_layer),
        )  # fmt: skip
        if not (1 <= self.n_head <= 4096 and 1 <= self.d <= mla.MAX_WIDTH and self.is_full[0]):
            raise ModelError(
                f"{f.path.name}: an indexer of {self.n_head} heads of {self.d}, in layers {self.is_full},"
                " makes no sense"
            )
        return self


def selecting_layers(f: ModelFile, n_layer: int) -> tuple[bool, ...]:
    """Which layers have an index of their own: as the file says, by default all, but see `LONG_CONTEXT`."""
    key = f.arch_key("attention.indexer.types")
    flags = f.metadata.get(key)
    if isinstance(flags, np.ndarray):
        if len(flags) < n_layer or flags.dtype.kind not in "iub":
            raise ModelError(f"{f.path.name}: {key} does not say which of {n_layer} layers have an index")
        return tuple(map(bool, flags[:n_layer].tolist()))
    if f.architecture == "glm-dsa" and f.get_int(f.arch_key("context_length")) >= LONG_CONTEXT:
        return tuple(i < 2 or i % 4 == 2 for i in range(n_layer))
    return (True,) * n_layer


def select(
    p: Plan, i: Index, layer: Layer, h: Source, low: Source, keys: Keys, group: LatentGroup, rotation: Rope
) -> None:  # fmt: skip
    """Narrow `keys` down to what the layer's own index selects."""
    n = f"{layer.prefix}indexer."
    q = p.matmul(low, [f"{n}attn_q_b"], "index q", widths=[i.n_head * i.d])
    k = p.matmul(h, [f"{n}attn_k"], "index k", widths=[i.d])
    weights = p.matmul(h, [f"{n}proj"], "index weights", widths=[i.n_head])
    normed = p.layer_norm(k, f"{n}k_norm", KEY_NORM_EPS[p.file.architecture])
    assert normed.keep is not None
    normed.keep(k)
    p.rotate_columns(q, 0, i.n_head, rotation)
    p.rotate_columns(k, 0, 1, rotation)
    index = latent.paged_keys(p, group, i.d)
    latent.store(p, index, k)
    indexer.select(p, keys, index, q, weights, i.n_head, i.top_k)


def selecting(p: Plan, index: Index, rotation: Rope) -> mla.Select:
    """What narrows down keys, layer after layer: the layer's own index, or the selection made last."""
    group = p.latent_group("index")
    last: list[Keys] = []

    def narrow(layer: Layer, h: Source, low: Source, keys: Keys) -> None:
        if index.is_full[layer.index]:
            select(p, index, layer, h, low, keys, group, rotation)
            last[:] = [keys]
        else:
            p.weights.ignore(*(f"{layer.prefix}indexer.{name}" for name in TENSORS))
            indexer.share(keys, last[0])

    return narrow


def build(p: Plan) -> None:
    """Write the forward pass into `p`."""
    d = Decoder.read(p.file, n_extra=n_nextn(p.file))
    m = mla.Latent.read(p.file, d.heads.n)
    index = Index.read(p.file, d.n_layer)
    if not m.q_rank or m.n_rot > index.d:
        raise ModelError(
            f"{p.file.path.name}: an indexer of {index.d} values, {m.n_rot} of them rotated, over queries of"
            f" rank {m.q_rank} makes no sense"
        )
    experts = Experts.read(p.file, d, function=SIGMOID, normalise=False)
    is_deepseek = p.file.architecture == "deepseek32"
    rotation, scale = mla.rotation(p, m, tenths=is_deepseek)
    index_rotation = mla.rotation(p, m, tenths=True, neox=True)[0] if is_deepseek else rotation
    group = p.latent_group("latent")
    narrow = selecting(p, index, index_rotation)
    x = p.embedding("token_embd", d.n_embd)
    for layer in d.layers:
        mla.attention(p, d, m, layer, x, group, rotation, scale, narrow)
        moe(p, d, experts, layer, x)
    blocks.readout(p, d, x)
