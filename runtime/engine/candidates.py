"""The few reductions over a row of logits that sampling needs. Ties go to the lowest token id."""

import numpy as np
import numpy.typing as npt

from runtime.kernels import select

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


def argmax(logits: Logits) -> int:
    return int(select.argmax(_address(logits), len(logits)))


def top_k(logits: Logits, k: int) -> tuple[Ids, Logits]:
    """The k largest logits, descending: int32 ids [k] and float32 values [k]; fewer if some are NaN."""
    k = min(k, len(logits))
    ids, values = np.empty(k, np.int32), np.empty(k, np.float32)
    n = select.top_k(_address(logits), len(logits), k, ids.ctypes.data, values.ctypes.data)
    return ids[:n], values[:n]


def log_sum_exp(logits: Logits) -> float:
    """ln Σ exp(logit)."""
    return float(select.log_sum_exp(_address(logits), len(logits)))


def warm_up() -> None:
    """Compile or load the kernels now instead of in the first request."""
    row = np.zeros(32, np.float32)
    argmax(row), top_k(row, 2), log_sum_exp(row)


def _address(logits: Logits) -> int:
    if logits.dtype != np.float32 or not logits.flags.c_contiguous:
        raise ValueError(f"a row of logits is contiguous float32, not {logits.dtype}")
    return logits.ctypes.data
