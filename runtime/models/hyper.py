"""Hyperparameters that nearly every decoder reads from its GGUF."""

from dataclasses import dataclass

import numpy as np

from runtime.errors import ModelError
from runtime.gguf import ModelFile
from runtime.kernels.tape import SCRATCH
from runtime.plan.values import Heads

MAX_LAYERS = 4096
MAX_WIDTH = SCRATCH // 4  # ops take a row of f32 into scratch


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its index, how its tensors' names begin, its heads and the width of its MLP."""

    index: int
    prefix: str
    heads: Heads
    n_ff: int

    @property
    def attends(self) -> bool:
        """Whether it has attention, in models where not every layer does."""
        return self.heads.n_kv > 0


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder, in floats or counts; `eps` and `layer_norm` describe its norms."""

    n_embd: int
    layers: tuple[Layer, ...]
    eps: float
    layer_norm: bool

    @property
    def n_layer(self) -> int:
        return len(self.layers)

    @property
    def heads(self) -> Heads:
        """Those of the first layer, for models whose layers are alike."""
        return self.layers[0].heads

    @classmethod
    def read(
        cls, f: ModelFile, *, layer_norm: bool = False, n_extra: int = 0, mixed: bool = False
    ) -> "Decoder":
        """Head counts and MLP widths may be one number or an array of one per layer.

        `n_extra` layers at the end are not part of the forward pass. In `mixed` models layers may have no
        heads or an MLP of width 0. Errors: ModelError when a key is missing or makes no sense.
        """
        key = f.arch_key
        n_embd, n_stored = (
            f.get_int(key("embedding_length"), high=MAX_WIDTH),
            f.get_int(key("block_count"), low=1, high=MAX_LAYERS),
        )
        low = 0 if mixed else 1
        n_head = f.get_ints(key("attention.head_count"), n_stored, low=low, high=2**20)
        n_kv = f.get_ints(key("attention.head_count_kv"), n_stored, n_head, low=low, high=2**20)
        n_ff = f.get_ints(key("feed_forward_length"), n_stored, low=low, high=MAX_WIDTH)
        d = n_embd // next(filter(None, n_head), n_embd or 1)
        d_k, d_v = (f.get_int(key(f"attention.{kind}_length"), default=d) for kind in ("key", "value"))
        headless = any(kv and not q for q, kv in zip(n_head, n_kv, strict=True))
        if d_k < 1 or d_v < 1 or headless or not 0 <= n_extra < n_stored:
            raise ModelError(
                f"{f.path.name}: heads of {d_k}/{d_v} values in {n_stored} - {n_extra} layers make no sense"
            )
        layers = (
            Layer(i, f"blk.{i}.", Heads(n_head[i], n_kv[i], d_k, d_v), n_ff[i])
            for i in range(n_stored - n_extra)
        )
        eps = f.get_float(key(f"attention.layer_norm_{'' if layer_norm else 'rms_'}epsilon"))
        return cls(n_embd, tuple(layers), eps, layer_norm)


def local_layers(
    f: ModelFile, n_layer: int, window: int, period: int, *, dense_first: bool = False
) -> tuple[bool, ...]:
    """Which layers see a window only: by an array of flags, or all but the last of each period.

    `period` is what the architecture has where the file says nothing; with `dense_first` all but the first of
    each are local. Without a window no layer is.
    """
    if not window:
        return (False,) * n_layer
    key = f.arch_key("attention.sliding_window_pattern")
    flags = f.metadata.get(key)
    if isinstance(flags, np.ndarray):
        if len(flags) < n_layer:
            raise ModelError(f"{key} has {len(flags)} elements for {n_layer} layers")
        return tuple(map(bool, flags[:n_layer].tolist()))
    period = f.get_int(key, default=period)
    dense = 0 if dense_first else period - 1
    return tuple(period > 0 and i % period != dense for i in range(n_layer))


def n_nextn(f: ModelFile) -> int:
    """Layers at the end that predict further tokens and are not part of the forward pass."""
    return f.get_int(f.arch_key("nextn_predict_layers"), default=0)


def window_of(f: ModelFile, default: int = 0) -> int:
    """Positions that a windowed layer sees; 0 for a model without such layers."""
    return f.get_int(f.arch_key("attention.sliding_window"), default=default)
