"""Causal convolutions as parts of a plan."""

from collections.abc import Sequence

import numpy as np

from runtime.errors import UnsupportedModel
from runtime.kernels.conv import conv
from runtime.kernels.simd import LANES
from runtime.plan.builder import Plan
from runtime.plan.values import Rows

MAX_TAPS = 64


def convolve(
    p: Plan, x: Rows, names: Sequence[str], widths: Sequence[int], taps: int, out: str, *, silu: bool = False,
    before: Rows | None = None, after: Rows | None = None,
) -> Rows:  # fmt: skip
    """out = after * f(causal depthwise convolution of before * x), f SiLU if asked for.

    `names` are those of the weights ``[taps, width]`` of consecutive channels, whose biases are used where
    there are any. `before` and `after` are columns of the same buffer as `x`. The sequence remembers
    ``taps - 1`` rows of inputs. Errors: ModelError for tensors of other shapes, UnsupportedModel for sizes
    beyond the kernels.
    """
    if not 2 <= taps <= MAX_TAPS or any(width % LANES for width in widths):
        raise UnsupportedModel(
            f"{p.file.path.name}: convolutions of {taps} taps over {list(widths)} channels are not supported"
        )
    n = sum(widths)
    weight = p.arena.array((taps, n), np.float32, " + ".join(names))
    at = 0
    for name, width in zip(names, widths, strict=True):
        weight[:, at : at + width] = p.weights.lines(f"{name}.weight", taps, width).T
        at += width
    biases = [f"{name}.bias" for name in names]
    bias = p.weights.vector(*biases, widths=widths) if any(map(p.weights.has, biases)) else 0
    y = p.buffer(out, n, x.count)
    p.families.add("conv")
    assert x.width == n and all(columns.ld == x.ld for columns in (before, after) if columns is not None)
    p.op(conv, x.address, x.ld, before.address - x.address if before else 0,
         after.address - x.address if after else 0, n, taps, weight.ctypes.data, bias, int(silu), y.address,
         y.ld, p.tail.state("conv", (taps - 1) * n))  # fmt: skip
    return y
