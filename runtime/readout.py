"""What a model does with pooled rows: nothing, dense layers (EmbeddingGemma), or a classifier (rerankers)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile
from runtime.kernels.dequant import dequantise_rows
from runtime.kernels.formats import FORMATS
from runtime.pooling import POOLING_TYPES, Pooling, Vectors, pool

Weights = Vectors

_RANKS_BY_MEAN = ("modern-bert",)
_RANKS_BY_LAST = ("qwen3", "qwen3vl")


@dataclass(frozen=True, slots=True)
class Dense:
    """``activation(weight . x + bias)``: float32 [n_out, n_in] and [n_out], or None for no bias."""

    weight: Weights
    bias: Weights | None = None
    activation: str = ""  # "", "tanh", "gelu" or "softmax"

    def __call__(self, x: Vectors) -> Vectors:
        """float32 [n, n_in] -> [n, n_out], each row on its own."""
        y = np.stack([(self.weight * row).sum(axis=1, dtype=np.float64) for row in x])
        if self.bias is not None:
            y += self.bias
        if self.activation == "tanh":
            y = np.tanh(y)
        elif self.activation == "gelu":
            y = 0.5 * y * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * y * (1.0 + 0.044715 * y * y)))
        elif self.activation == "softmax":
            y = np.exp(y - y.max(axis=1, keepdims=True))
            y /= y.sum(axis=1, keepdims=True)
        return y.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Readout:
    """Turns hidden rows of one sequence into its vectors: `rows_pooling` of the rows, then `layers`.

    `pooling` is what it is called; `n_out` are the values of a vector (for RANK: the scores).
    """

    pooling: Pooling
    n_out: int
    rows_pooling: Pooling
    layers: tuple[Dense, ...] = ()

    def __call__(self, rows: Vectors) -> Vectors:
        """float32 [n_tokens, n_embd] -> [1, n_out], or [n_tokens, n_out] without pooling; not normalised."""
        x = pool(rows, self.rows_pooling)
        for layer in self.layers:
            x = layer(x)
        return x


def read_readout(file: ModelFile, pooling: Pooling | None = None) -> Readout:
    """The readout that `pooling` asks for, by default the file's own `pooling_type`, or else NONE.

    Errors: ModelError for tensors of a wrong shape, for RANK without a classifier and for an unknown type.
    """
    n_embd = file.get_int(file.arch_key("embedding_length"))
    if pooling is None:
        number = file.get_int(file.arch_key("pooling_type"), default=-1, low=-1)
        if number >= len(POOLING_TYPES):
            raise UnsupportedModel(f"{file.path.name}: pooling type {number} is not supported")
        pooling = Pooling.NONE if number < 0 else POOLING_TYPES[number]
    rank = pooling is Pooling.RANK
    layers = tuple(_classifier(file, n_embd) if rank else _projections(file, n_embd))
    n_out = layers[-1].weight.shape[0] if layers else n_embd
    return Readout(pooling, n_out, _rank_pooling(file) if rank else pooling, layers)


def _rank_pooling(file: ModelFile) -> Pooling:
    if file.architecture in _RANKS_BY_MEAN:
        return Pooling.MEAN
    return Pooling.LAST if file.architecture in _RANKS_BY_LAST else Pooling.CLS


def _projections(file: ModelFile, n_embd: int) -> Iterator[Dense]:
    for name in ("dense_2", "dense_3"):
        if file.has(f"{name}.weight"):
            yield (layer := _dense(file, name, n_embd))
            n_embd = layer.weight.shape[0]


def _classifier(file: ModelFile, n_embd: int) -> Iterator[Dense]:
    if not (file.has("cls.weight") or file.has("cls.output.weight")):
        raise ModelError(f"{file.path.name}: has no classifier to rank with")
    if file.has("cls.norm.weight"):
        raise UnsupportedModel(f"{file.path.name}: classifiers with a norm are not supported")
    if file.has("cls.weight"):
        hidden = _dense(file, "cls", n_embd, "gelu" if file.architecture == "modern-bert" else "tanh")
        n_embd = hidden.weight.shape[0]
        yield hidden
    if file.has("cls.output.weight"):
        yield _dense(file, "cls.output", n_embd, "softmax" if file.architecture == "qwen3" else "")


def _dense(file: ModelFile, name: str, n_in: int, activation: str = "") -> Dense:
    """Also of quantised tensors. Errors: ModelError for a shape that does not fit."""
    weight = _matrix(file, f"{name}.weight", n_in)
    bias = f"{name}.bias"
    if not file.has(bias):
        return Dense(weight, None, activation)
    n_out = weight.shape[0]
    return Dense(weight, _matrix(file, bias, n_out).reshape(n_out), activation)


def _matrix(file: ModelFile, name: str, n_in: int) -> Weights:
    """float32 [n_out, n_in]; a vector is a matrix of one row."""
    tensor = file.tensor(name)
    if len(tensor.shape) > 2 or tensor.shape[0] != n_in or (name.endswith(".bias") and len(tensor.shape) > 1):
        raise ModelError(
            f"{file.path.name}: tensor {name} has shape {list(tensor.shape)}, expected rows of {n_in}"
        )
    if tensor.type.name not in FORMATS:
        raise UnsupportedModel(f"{file.path.name}: tensor {name} has type {tensor.type.name}")
    n_rows = tensor.shape[1] if len(tensor.shape) == 2 else 1
    return dequantise_rows(tensor.type.name, file.tensor_bytes(name).reshape(n_rows, -1), n_in)
