"""Token probabilities as JSON (http-api.md 15.5)."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

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


def _entry(token: TokenProb, token_bytes: Callable[[int], bytes], post_sampling: bool) -> dict[str, Any]:
    data = token_bytes(token.id)
    shown = {"prob": token.prob} if post_sampling else {"logprob": max(token.logprob, _LOWEST)}
    return {"id": token.id, "token": token_text(data), "bytes": list(data), **shown}
