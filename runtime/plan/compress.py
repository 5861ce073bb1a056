"""Compressed keys as parts of a plan: what positions said, pooled to one row for every few of them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import UnsupportedModel
from runtime.kernels import compress as ops
from runtime.kernels import roundtrip
from runtime.kernels.job import f32_bits
from runtime.kernels.simd import LANES
from runtime.plan.builder import Plan
from runtime.plan.latent import Keys
from runtime.plan.tail import Ring
from runtime.plan.values import Source
from runtime.plan.weights import padded


@dataclass(frozen=True, slots=True)
class Accumulator:
    """What positions said to one compressor, waiting in a ring until `ratio` of them make a row of `d`.

    Where blocks overlap, that is twice as wide, and what the block before said waits too.
    """

    ring: Ring
    offset: int
    d: int
    ratio: int
    overlaps: bool

    @property
    def width(self) -> int:
        return 2 * self.d if self.overlaps else self.d

    @classmethod
    def of(cls, ring: Ring, d: int, ratio: int, *, overlaps: bool) -> "Accumulator":
        """One more in a ring of that period, which keeps a whole one back where blocks overlap."""
        assert (ring.period, ring.back) == (ratio, ratio if overlaps else 0)
        floats = 2 * (2 * d if overlaps else d)
        return cls(ring, ring.add("values-and-scores-", 4 * floats), d, ratio, overlaps)


def compress(
    p: Plan, x: Source, name: str, accumulator: Accumulator, keys: Keys,
    frequencies: npt.NDArray[np.float64], eps: float, rounding: int = roundtrip.NONE,
) -> None:  # fmt: skip
    """The rows of `keys` that the step's positions complete. The tensors' names begin with `name`.

    `frequencies` are those of the rope on a row's last dims, `rounding` is a kind of `kernels.roundtrip`.
    Errors: ModelError for tensors of other shapes, UnsupportedModel for rows that are not whole vectors.
    """
    a, d, width = accumulator, accumulator.d, accumulator.width
    if d % LANES:
        raise UnsupportedModel(f"{p.file.path.name}: compressed rows of {d} values are not supported")
    said = p.matmul(x, [f"{name}_kv", f"{name}_gate"], "compressor", widths=[width, width])
    ape = p.arena.array((a.ratio, width), np.float32, f"{name}_ape")
    ape[:] = p.weights.lines(f"{name}_ape.weight", width, a.ratio)
    words = p.arena.array((ops.C_WORDS,), np.int64, name)
    for index, value in {
        ops.C_X: said.address, ops.C_LDX: said.ld, ops.C_GATE: 4 * padded(width), ops.C_WIDTH: width,
        ops.C_D: d, ops.C_RATIO: a.ratio, ops.C_APE: ape.ctypes.data,
        ops.C_NORM: p.weights.vector(f"{name}_norm.weight", widths=[d]), ops.C_EPS: f32_bits(eps),
        ops.C_OFFSET: a.offset, ops.C_FREQUENCIES: frequencies.ctypes.data, ops.C_PAIRS: len(frequencies),
        ops.C_ROWS: keys.address, ops.C_ROUNDING: rounding,
    }.items():  # fmt: skip
        words[index] = value
    a.ring.patch(words, ops.C_RING, ops.C_STRIDE, ops.C_CAPACITY)
    p.op(ops.append, words.ctypes.data)
    p.op(ops.emit, words.ctypes.data)
