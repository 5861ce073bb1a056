"""What the engine refuses before it gives a request a slot."""

import numpy as np

from runtime.engine.messages import GenerateRequest, Tokens
from runtime.errors import ContextExceeded, InvalidRequest

# Every character of an answer is matched against each, and their tables are built between two steps.
MAX_STOPS = 256
MAX_STOP_CHARACTERS = 65_536


def check_request(request: GenerateRequest, n_slots: int, n_ctx: int, n_vocab: int) -> Exception | None:
    """Why the request cannot be answered; None if it can."""
    if request.id_slot >= n_slots:
        return no_such_slot(request.id_slot, n_slots)
    if len(request.stop) > MAX_STOPS or sum(map(len, request.stop)) > MAX_STOP_CHARACTERS:
        return InvalidRequest(
            f"at most {MAX_STOPS} stop strings of {MAX_STOP_CHARACTERS} characters in total are allowed"
        )
    return check_tokens(request.prompt, n_vocab) or _check_length(len(request.prompt), n_ctx)


def check_prefix(tokens: Tokens, n_ctx: int, n_vocab: int) -> Exception | None:
    """Why these tokens cannot be what a slot remembers; None if they can."""
    error = check_tokens(tokens, n_vocab)
    if error is None and len(tokens) > n_ctx:
        return ContextExceeded(len(tokens), n_ctx)
    return error


def check_tokens(tokens: Tokens, n_vocab: int) -> Exception | None:
    if tokens.dtype != np.int32 or tokens.ndim != 1 or not tokens.flags.c_contiguous:
        return InvalidRequest(f"tokens are a contiguous int32 [n], not {tokens.dtype} {list(tokens.shape)}")
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= n_vocab):
        return InvalidRequest(f"the prompt has a token id outside of 0..{n_vocab - 1}")
    return None


def no_such_slot(id_slot: int, n_slots: int) -> InvalidRequest:
    return InvalidRequest(f"there is no slot {id_slot}, slots are numbered 0..{n_slots - 1}")


def _check_length(n_prompt: int, n_ctx: int) -> Exception | None:
    return ContextExceeded(n_prompt, n_ctx) if n_prompt >= n_ctx else None
