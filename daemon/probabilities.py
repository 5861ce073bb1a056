"""Token probabilities as JSON (http-api.md 15.5)."""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from daemon.completion import Completion
from daemon.text import token_text
from runtime.engine.messages import TokenOutput, TokenProb

_LOWEST = -sys.float_info.max


def completion_probabilities(
    tokens: Iterable[TokenOutput], token_bytes: Callable[[int], bytes], post_sampling: bool
) -> list[dict[str, Any]]:
    """One object per token: the chosen one and the likeliest candidates.

    `post_sampling` shows ``prob`` after the sampler chain instead of ``logprob`` of the raw logits;
    candidates that the chain removed are left out there. A logarithm of zero is the lowest finite number,
    JSON has no infinity.
    """
    result = []
    for token in tokens:
        if token.chosen is None:
            continue
        entry = _entry(token.chosen, token_bytes, post_sampling)
        key = "top_probs" if post_sampling else "top_logprobs"
        entry[key] = [
            _entry(candidate, token_bytes, post_sampling)
            for candidate in token.top
            if candidate.prob > 0 or not post_sampling
        ]
        result.append(entry)
    return result


def likeliest(completions: Sequence[Completion], n: int) -> list[Completion]:
    """Of each prompt's completions, which stand together, the `n` with the largest mean logprob of a token.

    That is OpenAI's measure for ``best_of``. Best first, of equals the earlier one, one without tokens last.
    """
    n_made = completions[0].settings.n_cmpl
    shown: list[Completion] = []
    for start in range(0, len(completions), n_made):
        shown += sorted(completions[start : start + n_made], key=_mean_logprob, reverse=True)[:n]
    return shown


def _mean_logprob(completion: Completion) -> float:
    logprobs = [token.chosen.logprob for token in completion.tokens if token.chosen is not None]
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf


def _entry(token: TokenProb, token_bytes: Callable[[int], bytes], post_sampling: bool) -> dict[str, Any]:
    data = token_bytes(token.id)
    shown = {"prob": token.prob} if post_sampling else {"logprob": max(token.logprob, _LOWEST)}
    return {"id": token.id, "token": token_text(data), "bytes": list(data), **shown}
