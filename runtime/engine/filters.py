"""The steps of the sampler chain between logits and dice, each a pure function over sorted candidates.

`ids` int32 [n] and `logits` float64 [n] go together, in descending order of logit. Formulas are llama.cpp's.
Each step keeps at least `min_keep` candidates and never fewer than one.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.engine.candidates import Ids

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    ids: Ids
    logits: Floats

    def __len__(self) -> int:
        return len(self.ids)


def softmax(logits: Floats) -> Floats:
    """Probabilities of sorted logits (the first is the largest)."""
    weights = np.exp(logits - logits[0])
    probabilities: Floats = weights / weights.sum()
    return probabilities


def temper(logits: Floats, temperature: float) -> Floats:
    """Logits over a temperature, relative to the largest: no positive temperature overflows it."""
    with np.errstate(over="ignore"):
        relative: Floats = (logits - logits[0]) / temperature
    return relative


def typical(found: Candidates, p: float, min_keep: int) -> Candidates:
    """Locally typical sampling: nearest to the entropy first, until their mass exceeds `p`."""
    if p >= 1.0:
        return found
    probabilities = softmax(found.logits)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(probabilities)
        entropy = float(np.nansum(probabilities * surprise))
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    mass = np.cumsum(probabilities[order])
    kept = np.sort(order[: _first(mass > p, min_keep)])
    return Candidates(found.ids[kept], found.logits[kept])


def top_p(found: Candidates, p: float, min_keep: int, log_total: float | None = None) -> Candidates:
    """The shortest beginning whose mass reaches `p`.

    `log_total` is the log-sum-exp over everything the mass is a share of, where that is more than `found`.
    """
    if p >= 1.0:
        return found
    mass = np.cumsum(softmax(found.logits) if log_total is None else np.exp(found.logits - log_total))
    n = _first(mass >= p, min_keep)
    return Candidates(found.ids[:n], found.logits[:n])


def min_p(found: Candidates, p: float, min_keep: int) -> Candidates:
    """Those at least `p` times as likely as the most likely one."""
    if p <= 0.0:
        return found
    n = int(np.count_nonzero(found.logits >= found.logits[0] + np.log(p)))
    n = max(n, min_keep, 1)
    return Candidates(found.ids[:n], found.logits[:n])


def _first(reached: npt.NDArray[np.bool_], min_keep: int) -> int:
    """Length of the shortest beginning that reaches the goal and is not shorter than `min_keep`."""
    n = int(reached.argmax()) + 1 if reached.any() else len(reached)
    return min(max(n, min_keep), len(reached))
