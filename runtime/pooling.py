"""From the hidden rows of a sequence to its embedding: pooling and normalisation."""

from enum import StrEnum

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class Pooling(StrEnum):
    """llama-server's `--pooling`. RANK is what rerankers do: a classifier over one pooled row."""

    NONE = "none"
    MEAN = "mean"
    CLS = "cls"
    LAST = "last"
    RANK = "rank"


POOLING_TYPES = (Pooling.NONE, Pooling.MEAN, Pooling.CLS, Pooling.LAST, Pooling.RANK)
"""By the number that a model file's `pooling_type` has."""

NO_NORM, MAX_INT16, TAXICAB, EUCLIDEAN = -1, 0, 1, 2
"""llama-server's `embd_normalize`; p > 2 stands for the p-norm."""

_INT16_RANGE = 32760.0


def pool(rows: Vectors, pooling: Pooling) -> Vectors:
    """float32 [n_tokens, n_embd] -> [1, n_embd], or the rows themselves for NONE. The result is a copy.

    Means are summed in float64, first row first. Errors: ValueError for no rows, or for RANK, which needs the
    model (see `runtime.readout`).
    """
    if not len(rows):
        raise ValueError("there are no rows to pool")
    match pooling:
        case Pooling.NONE:
            return rows.copy()
        case Pooling.MEAN:
            mean: npt.NDArray[np.float64] = rows.mean(axis=0, dtype=np.float64, keepdims=True)
            return mean.astype(np.float32)
        case Pooling.CLS:
            return rows[:1].copy()
        case Pooling.LAST:
            return rows[-1:].copy()
    raise ValueError("ranking is not a pooling of rows alone")


def normalise(vectors: Vectors, kind: int = EUCLIDEAN) -> Vectors:
    """Each of float32 [n, n_embd] divided by its norm of that kind; vectors of zeros stay so.

    `MAX_INT16` makes the largest component 32760, as if for 16-bit integers. Errors: ValueError below -1.
    """
    if kind < NO_NORM:
        raise ValueError(f"there is no normalisation {kind}")
    if kind == NO_NORM:
        return vectors
    sizes = np.abs(vectors.astype(np.float64))
    top = sizes.max(axis=1, keepdims=True)
    if kind == MAX_INT16:
        norms = top / _INT16_RANGE
    else:
        # relative to the largest, so that no power leaves the range of a float
        shares = sizes / np.where(top > 0, top, 1.0)
        norms = top * (shares**kind).sum(axis=1, keepdims=True) ** (1.0 / kind)
    return (vectors / np.where(norms > 0, norms, np.inf)).astype(np.float32)
