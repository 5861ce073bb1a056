"""The few reductions over a row of logits that sampling needs. Ties go to the lowest token id."""

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


def argmax(logits: Logits) -> int:
    return int(logits.argmax())


def top_k(logits: Logits, k: int) -> tuple[Ids, Logits]:
    """The k largest logits in descending order: int32 ids [k] and float32 values [k]."""
    n = len(logits)
    if k >= n:
        ids = np.arange(n, dtype=np.int32)
    else:
        threshold = np.partition(logits, n - k)[n - k]
        above = np.flatnonzero(logits > threshold)
        level = np.flatnonzero(logits == threshold)[: k - len(above)]
        ids = np.sort(np.concatenate((above, level))).astype(np.int32)
    order = np.argsort(-logits[ids], kind="stable")
    ids = ids[order]
    return ids, logits[ids]


def log_sum_exp(logits: Logits) -> float:
    """ln Σ exp(logit), summed in float64."""
    peak = np.float64(logits.max())
    return float(peak + np.log(np.exp(logits - peak, dtype=np.float64).sum()))
