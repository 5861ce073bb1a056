"""The system prompt of all slots: a text before every prompt, whatever route brought it.

It comes from ``--system-prompt-file`` or, while running, from a request's ``system_prompt``. As in
llama-server it is the beginning of every slot's context, before a chat's own messages as well. Slots share
its rows as they share any prefix, so changing it interrupts nobody and empties nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from daemon.errors import ApiError, invalid_field
from daemon.flags import UsageError
from daemon.text import as_tokens, encode_text
from runtime.engine.messages import Tokens
from runtime.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class SystemPrompt:
    """`anti_prompt`, the user's name in a transcript, is one more stop string of every request."""

    prompt: str = ""
    anti_prompt: str = ""
    assistant_name: str = ""


def parse_system_prompt(given: Any) -> SystemPrompt | None:
    """A text, or an object with llama-server's three keys; None when it asks for nothing.

    Raises ApiError 400 for other shapes. An object with an empty prompt takes the system prompt away.
    """
    if given in (None, "", {}):
        return None
    if isinstance(given, str):
        return SystemPrompt(given)
    try:
        return msgspec.convert(given, SystemPrompt)
    except msgspec.ValidationError as error:
        raise invalid_field("system_prompt", str(error).replace("`", "")) from None


def read_system_prompt(path: str) -> SystemPrompt:
    """The file of --system-prompt-file: plain text, or a JSON object as requests carry it.

    Raises UsageError when it cannot be used.
    """
    if not path:
        return SystemPrompt()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--system-prompt-file: {error}") from None
    if not text.lstrip().startswith("{"):
        return SystemPrompt(text)
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return SystemPrompt(text)
    try:
        return parse_system_prompt(given) or SystemPrompt()
    except ApiError as error:
        raise UsageError(f"--system-prompt-file: {error.message}") from None


def encode_system(system: SystemPrompt, tokenizer: Tokenizer) -> Tokens:
    """Tokens of the system prompt, with BOS where the model asks for it."""
    if not system.prompt:
        return as_tokens(())
    bos = as_tokens(tokenizer.prefix_ids)
    return np.concatenate([bos, encode_text(system.prompt, tokenizer, add_special=False)])


def after_system(system: Tokens, prompt: Tokens, tokenizer: Tokenizer) -> Tokens:
    """`prompt` behind the system prompt, which has its BOS already."""
    if not len(system):
        return prompt
    bos = as_tokens(tokenizer.prefix_ids)
    if len(bos) and np.array_equal(prompt[: len(bos)], bos):
        prompt = prompt[len(bos) :]
    return np.concatenate([system, prompt])
