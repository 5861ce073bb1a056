"""Compressed keys as parts of a plan: what positions said, pooled to one row for every few of them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import UnsupportedModel
from runtime.kernels import compress as ops
from runtime.kernels.job import f32_bits
from runtime.kernels.simd import LANES
from runtime.plan.builder import Plan
from runtime.plan.latent import Keys
from runtime.plan.tail import Ring
from runtime.plan.values import Source
from runtime.plan.weights import padded


@dataclass(frozen=True, slots=True)
class Pooling:
    """`ratio` positions make a row, with those of the block before where blocks overlap.

    `ring` keeps what positions said, `frequencies` f64 are those of the rope on a row's last dims.
    """

    ratio: int
    overlaps: bool
    ring: Ring
    frequencies: npt.NDArray[np.float64]
    eps: float


def compress(p: Plan, x: Source, name: str, pooling: Pooling, keys: Keys) -> None:
    """The rows of `keys` that the step's positions complete. The tensors' names begin with `name`.

    Errors: ModelError for tensors of other shapes, UnsupportedModel for rows that are not whole vectors.
    """
    d, ratio = keys.d, pooling.ratio
    width = 2 * d if pooling.overlaps else d
    if d % LANES:
        raise UnsupportedModel(f"{p.file.path.name}: compressed rows of {d} values are not supported")
    said = p.matmul(x, [f"{name}_kv", f"{name}_gate"], "compressor", widths=[width, width])
    ape = p.arena.array((ratio, width), np.float32, f"{name}_ape")
    ape[:] = p.weights.lines(f"{name}_ape.weight", width, ratio)
    words = p.arena.array((ops.C_WORDS,), np.int64, name)
    for index, value in {
        ops.C_X: said.address, ops.C_LDX: said.ld, ops.C_GATE: 4 * padded(width), ops.C_WIDTH: width,
        ops.C_D: d, ops.C_RATIO: ratio, ops.C_APE: ape.ctypes.data,
        ops.C_NORM: p.weights.vector(f"{name}_norm.weight", widths=[d]), ops.C_EPS: f32_bits(pooling.eps),
        ops.C_OFFSET: pooling.ring.add("values-and-scores-", 8 * width),
        ops.C_FREQUENCIES: pooling.frequencies.ctypes.data, ops.C_PAIRS: len(pooling.frequencies),
        ops.C_ROWS: keys.address,
    }.items():  # fmt: skip
        words[index] = value
    pooling.ring.patch(words, ops.C_RING, ops.C_STRIDE, ops.C_CAPACITY)
    p.op(ops.append, words.ctypes.data)
    p.op(ops.emit, words.ctypes.data)
