"""From a row of logits to a token: llama.cpp's default chain.

logit bias → penalties → top-k → typical → top-p → min-p → temperature → dice. At most `top_k` candidates are
looked at in Python; the whole vocabulary only where the parameters demand it.
"""

from dataclasses import dataclass

import numpy as np

from runtime.engine import candidates, filters
from runtime.engine.candidates import Ids, Logits
from runtime.engine.filters import Candidates, Floats
from runtime.engine.messages import SamplingParams, TokenOutput, TokenProb, Tokens
from runtime.engine.penalties import Penalties
from runtime.engine.randomness import resolve_seed, uniform
from runtime.errors import NothingToSample, StepFailed

# A nucleus is nearly always within this many candidates; if not, the whole vocabulary is sorted.
_NUCLEUS = 1024
_LAST_ID = np.iinfo(np.int32).max
_LOWEST = float(np.finfo(np.float32).min)


class Sampler:
    """The sampler of one request. Same parameters, seed and logits give the same tokens, whatever ran beside.

    `history` are the prompt's tokens, `eog_ids` the tokens that end an answer, `n_ctx` the slot's context.
    """

    def __init__(self, params: SamplingParams, history: Tokens, eog_ids: frozenset[int], n_ctx: int) -> None:
        self.params = params
        self.seed = resolve_seed(params.seed)
        self._n_drawn = 0
        self._penalties = Penalties(params, n_ctx, history)
        self._bias = _bias(params, eog_ids)

    @property
    def changes_logits(self) -> bool:
        """Does `sample` change what it is given? Else it only reads it."""
        return self._penalties.active or bool(len(self._bias.ids))

    def sample(self, logits: Logits) -> TokenOutput:
        """Choose the next token; bias and penalties change `logits` float32 [n_vocab] in place.

        Raises `StepFailed` when no logit is finite, `NothingToSample` when none is after bias and penalties.
        """
        if not np.isfinite(best := float(logits.max())):
            raise StepFailed(f"no token can be sampled: the largest logit is {best}")
        wanted = self.params.n_probs
        before = _Raw(logits, wanted) if wanted > 0 and not self.params.post_sampling_probs else None
        self._bias.apply(logits)
        if self._penalties.active:
            self._penalties.apply(logits)
        output = self._greedy(logits) if self.params.temperature <= 0 else self._draw(logits)
        self._penalties.accept(output.id)
        self._n_drawn += 1
        return before.describe(output.id) if before is not None else output

    def _greedy(self, logits: Logits) -> TokenOutput:
        token = candidates.argmax(logits)
        _check(float(logits[token]))
        if self.params.n_probs > 0 and self.params.post_sampling_probs:
            certain = TokenProb(token, 0.0, 1.0)
            return TokenOutput(token, certain, (certain,))
        return TokenOutput(token)

    def _draw(self, logits: Logits) -> TokenOutput:
        p = self.params
        found, log_total = self._shortlist(logits)
        found = filters.typical(found, p.typical_p, p.min_keep)
        found = filters.top_p(found, p.top_p, p.min_keep, log_total)
        found = filters.min_p(found, p.min_p, p.min_keep)
        probabilities = filters.softmax(filters.temper(found.logits, p.temperature))
        edges = np.cumsum(probabilities)
        # The last edge may be a rounding away from 1; scaling by it keeps every draw inside.
        place = int(np.searchsorted(edges, uniform(self.seed, self._n_drawn) * edges[-1], side="right"))
        place = min(place, len(found) - 1)
        token = int(found.ids[place])
        if p.n_probs > 0 and p.post_sampling_probs:
            return _after(token, place, found.ids, probabilities, p.n_probs)
        return TokenOutput(token)

    def _shortlist(self, logits: Logits) -> tuple[Candidates, float | None]:
        """Sorted candidates, among them all that the rest of the chain can keep.

        With them the logarithm of the sum over all that they were chosen from, where they are not all of it.
        """
        p = self.params
        n = len(logits)
        if 0 < p.top_k < n:
            return _finite(*candidates.top_k(logits, p.top_k)), None
        if p.typical_p >= 1.0 and p.min_keep <= _NUCLEUS < n:
            found = _finite(*candidates.top_k(logits, _NUCLEUS))
            log_total = candidates.log_sum_exp(logits)
            nucleus = np.exp(found.logits - log_total).sum() >= p.top_p
            unlikely = p.min_p > 0.0 and found.logits[-1] < found.logits[0] + np.log(p.min_p)
            if (p.top_p < 1.0 and nucleus) or (p.top_p >= 1.0 and unlikely):
                return found, log_total
        return _finite(*candidates.top_k(logits, n)), None


@dataclass(frozen=True, slots=True)
class _Bias:
    ids: Ids
    values: Logits

    def apply(self, logits: Logits) -> None:
        if len(self.ids):
            inside = self.ids < len(logits)
            np.add.at(logits, self.ids[inside], self.values[inside])


def _bias(params: SamplingParams, eog_ids: frozenset[int]) -> _Bias:
    pairs = [(token, value) for token, value in params.logit_bias if 0 <= token <= _LAST_ID]
    if params.ignore_eos:
        pairs += [(token, -np.inf) for token in sorted(eog_ids)]
    with np.errstate(over="ignore"):
        values = np.array([value for _, value in pairs], np.float64).astype(np.float32)
    return _Bias(np.array([token for token, _ in pairs], np.int32), values)


class _Raw:
    """The `n` most likely tokens of the untouched logits, by the softmax over the whole vocabulary."""

    def __init__(self, logits: Logits, n: int) -> None:
        self._total = candidates.log_sum_exp(logits)
        self._ids, self._values = candidates.top_k(logits, min(n, len(logits)))
        self._logits = logits.copy()

    def describe(self, token: int) -> TokenOutput:
        top = tuple(map(self._probability, self._ids.tolist(), self._values.tolist()))
        return TokenOutput(token, self._probability(token, float(self._logits[token])), top)

    def _probability(self, token: int, logit: float) -> TokenProb:
        logprob = logit - self._total
        return TokenProb(token, max(logprob, _LOWEST), float(np.exp(logprob)))


def _after(token: int, place: int, ids: Ids, probabilities: Floats, n_probs: int) -> TokenOutput:
    def describe(i: int) -> TokenProb:
        return TokenProb(int(ids[i]), max(float(np.log(probabilities[i])), _LOWEST), float(probabilities[i]))

    n = min(n_probs, int(np.count_nonzero(probabilities)))
    return TokenOutput(token, describe(place), tuple(describe(i) for i in range(n)))


def _finite(ids: Ids, values: Logits) -> Candidates:
    """Candidates without the excluded ones, whose logit is -inf."""
    _check(float(values[0]))
    n = len(values) if np.isfinite(values[-1]) else int(np.count_nonzero(np.isfinite(values)))
    return Candidates(ids[:n], values[:n].astype(np.float64))


def _check(best: float) -> None:
    if not np.isfinite(best):
        raise NothingToSample(f"bias and penalties leave no token to sample: the largest logit is {best}")
