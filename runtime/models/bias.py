"""Attention that knows positions by what it adds to scores: a number by head and distance.

A distance is ``key - query``; functions of distances get float64 [n] and give float64 [heads, n].
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from runtime.memory.layout import BLOCK
from runtime.plan.builder import Plan
from runtime.plan.values import Bias

Distances = npt.NDArray[np.float64]
ByDistance = Callable[[Distances], npt.NDArray[np.float64]]

MAX_BIAS = 8.0  # of ALiBi, as all models with it have
MAX_DISTANCE = 128  # of T5's buckets, as all models with them have


def by_distance(p: Plan, heads: int, of: ByDistance) -> Bias:
    """The table of `of` for all distances of the context."""
    # rows that only fill a tile lie a little beyond the context
    span = (-(-p.options.n_ctx // BLOCK) + 1) * BLOCK
    table = p.arena.array((heads, 2 * span), np.float32)
    table[:] = of(np.arange(-span, span, dtype=np.float64))
    return Bias(table.ctypes.data, span)


def alibi(heads: int) -> ByDistance:
    """Attention with linear biases (Press et al. 2022, arXiv:2108.12409): ``-slope * |distance|`` per head.

    For n heads, a power of two, slopes are ``2 ** (-MAX_BIAS * i / n)``, i from 1. Further heads get every
    other slope of twice as many.
    """
    n = 2 ** math.floor(math.log2(heads))
    exponents = [i / n for i in range(1, n + 1)] + [i / (2 * n) for i in range(1, 2 * (heads - n), 2)]
    slopes = 2.0 ** (-MAX_BIAS * np.array(exponents))
    return lambda distances: -np.outer(slopes, np.abs(distances))


def bucketed(table: npt.NDArray[np.float32]) -> ByDistance:
    """T5's learned biases: float32 [n_buckets, heads], one line per bucket of distances."""
    return lambda distances: table[buckets(distances, len(table))].T.astype(np.float64)


def buckets(distances: Distances, n_buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each distance where keys lie on both sides (Raffel et al. 2020, arXiv:1910.10683, 2.1).

    Half of them are for keys up to the query. Of each half, one half is for a single distance each, the
    others grow exponentially up to `MAX_DISTANCE`, and the last has all beyond.
    """
    half = n_buckets // 2
    exact = half // 2
    away = np.abs(distances)
    share = np.log(np.maximum(away, 1) / exact) / math.log(MAX_DISTANCE / exact)
    far = np.minimum(exact + np.floor(share * (half - exact)), half - 1)
    return (np.where(distances > 0, half, 0) + np.where(away < exact, away, far)).astype(np.int64)
