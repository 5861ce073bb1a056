"""Text and tokens, as the HTTP surface needs them. Slow for long inputs: call these in `daemon.workers`."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from daemon.errors import invalid
from runtime.engine.messages import Tokens
from runtime.tokenizers import Tokenizer

_SHAPES = (
    '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, '
    "or a list of mixed strings & tokens."
)


def as_tokens(ids: Iterable[int]) -> Tokens:
    return np.fromiter(ids, dtype=np.int32)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def split_prompts(prompt: Any) -> tuple[list[Any], bool]:
    """The single prompts in `prompt`, and whether it was an array of several (http-api.md 14.1).

    A string, an object, a list of ids, or a list that mixes ids and strings is one prompt; a list without a
    bare integer is a list of prompts. Raises ApiError 400 for every other shape.
    """
    if isinstance(prompt, str | dict):
        return [prompt], False
    if not isinstance(prompt, list):
        raise invalid(_SHAPES)
    if not prompt:
        raise invalid('"prompt" must not be empty')
    if any(_is_id(element) for element in prompt):
        return [prompt], False
    return prompt, True


def encode_prompt(prompt: Any, tokenizer: Tokenizer) -> Tokens:
    """One prompt's tokens. BOS is added when it begins with text; special tokens in text are recognised.

    Raises ApiError 400 for a wrong shape, ids outside the vocabulary, and media.
    """
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            raise invalid("Multimodal data provided, but model does not support multimodal requests.")
        prompt = prompt.get("prompt_string")
        if not isinstance(prompt, str):
            raise invalid(_SHAPES)
    if isinstance(prompt, str):
        return encode_text(prompt, tokenizer, add_special=True)
    if not isinstance(prompt, list) or not all(_is_id(part) or isinstance(part, str) for part in prompt):
        raise invalid(_SHAPES)
    return encode_mixed(prompt, tokenizer, add_special=True)


def encode_mixed(
    parts: list[int | str], tokenizer: Tokenizer, *, add_special: bool, parse_special: bool = True
) -> Tokens:
    """Texts and ids in a row; `add_special` applies to the first part if that is text."""
    n_vocab = tokenizer.n_vocab
    ids = [part for part in parts if isinstance(part, int)]
    if len(ids) == len(parts):
        if any(not 0 <= token < n_vocab for token in ids):
            raise invalid("Prompt contains invalid tokens")
        return np.array(ids, dtype=np.int32)
    pieces: list[Tokens] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            pieces.append(
                encode_text(part, tokenizer, add_special=add_special and i == 0, parse_special=parse_special)
            )
        elif 0 <= part < n_vocab:
            pieces.append(as_tokens((part,)))
        else:
            raise invalid("Prompt contains invalid tokens")
    return np.concatenate(pieces) if pieces else as_tokens(())


def encode_text(text: str, tokenizer: Tokenizer, *, add_special: bool, parse_special: bool = True) -> Tokens:
    return as_tokens(tokenizer.encode(text, add_special=add_special, parse_special=parse_special))


def token_text(data: bytes) -> str:
    """The bytes of a token as text; half a character at the end is left out, other junk replaced."""
    for length in range(len(data), max(len(data) - 4, -1), -1):
        try:
            return data[:length].decode()
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace")
