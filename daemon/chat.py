"""From a chat request's messages to the prompt that the model continues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daemon.errors import ApiError, invalid
from daemon.templates import AnyTemplate, Messages
from daemon.text import encode_text
from runtime.engine.messages import Tokens
from runtime.tokenizers import Tokenizer

MAX_MESSAGES = 100_000


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """`text` as rendered; `prefill` is the part of it that continues a final assistant message."""

    text: str
    prefill: str = ""


def parse_messages(given: Any, template: AnyTemplate) -> Messages:
    """Check a request's messages and bring them into the form the template takes. Raises ApiError 400."""
    if given is None:
        raise invalid("'messages' is required")
    if not isinstance(given, list):
        raise invalid("Expected 'messages' to be an array")
    if len(given) > MAX_MESSAGES:
        raise invalid(f"'messages' has more than {MAX_MESSAGES} elements")
    messages = [_message(message, template) for message in given]
    if not template.caps.supports_system_role:
        messages = _fold_system(messages)
    return messages


def _message(given: Any, template: AnyTemplate) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise invalid("Expected each message to be an object")
    role = given.get("role")
    if not isinstance(role, str) or not role:
        raise invalid("Missing 'role' in message")
    content = given.get("content")
    calls = given.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise invalid("Expected 'tool_calls' to be an array")
    if role != "assistant" and content is None:
        raise invalid("All non-assistant messages must contain 'content'")
    if role == "assistant" and content is None and not calls:
        raise invalid("Assistant message must contain either 'content' or 'tool_calls'!")
    message: dict[str, Any] = {"role": _role(role, template), "content": _content(content, template)}
    for name in ("reasoning_content", "name", "tool_call_id"):
        if (value := given.get(name)) is not None:
            if not isinstance(value, str):
                raise invalid(f"Expected '{name}' to be a string")
            message[name] = value
    if calls:
        message["tool_calls"] = calls
    return message


def _role(role: str, template: AnyTemplate) -> str:
    # templates of the harmony family know `developer`; to all others it is the system's newer name
    return "system" if role == "developer" and "<|channel|>" not in template.source else role


def _content(content: Any, template: AnyTemplate) -> Any:
    """Text, or typed parts where the template takes nothing else."""
    typed_only = template.caps.supports_typed_content and not template.caps.supports_string_content
    if content is None:
        return ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if typed_only else content
    if not isinstance(content, list):
        raise invalid("Expected 'content' to be a string or an array")
    texts = [_part_text(part) for part in content]
    if typed_only:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise invalid("Missing 'type' in a part of 'content'")
    kind = part["type"]
    if kind in ("image_url", "input_audio", "input_video", "video_url"):
        raise invalid(f"{kind} is not supported by this server")
    if kind != "text":
        raise invalid(f"unsupported content[].type: {kind[:80]}")
    if not isinstance(part.get("text"), str):
        raise invalid("Missing 'text' in a part of 'content'")
    return str(part["text"])


def _fold_system(messages: Messages) -> Messages:
    """Put system texts before the next user's, for templates that refuse or drop the system role."""
    folded: Messages = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system" and isinstance(message["content"], str):
            waiting.append(message["content"])
        elif waiting and message["role"] == "user" and isinstance(message["content"], str):
            folded.append(message | {"content": "\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            folded.append(message)
    if waiting:
        folded.append({"role": "user", "content": "\n".join(waiting)})
    return folded


def render_chat(
    messages: Messages,
    template: AnyTemplate,
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool,
    continue_final: bool | None,
    prefill_assistant: bool,
) -> ChatPrompt:
    """The prompt, continuing a final assistant message where that is wanted. Raises ApiError 400.

    `continue_final` True demands a continuation, False forbids it; None leaves it to `prefill_assistant`.
    """
    ends_with_answer = bool(messages) and messages[-1]["role"] == "assistant"
    if continue_final and not ends_with_answer:
        raise invalid("continue_final_message needs a final message of the assistant")
    if not ends_with_answer or continue_final is False or not (continue_final or prefill_assistant):
        text = template.render(messages, add_generation_prompt=add_generation_prompt, variables=variables)
        return ChatPrompt(text)
    if len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise invalid("Cannot have 2 or more assistant messages at the end of the list.")
    last = messages[-1]
    if last.get("tool_calls"):
        raise invalid("Cannot continue a message with tool calls.")
    prefill = last["content"]
    if not isinstance(prefill, str):
        prefill = "\n".join(part["text"] for part in prefill)
    text = template.render(messages[:-1], add_generation_prompt=True, variables=variables)
    return ChatPrompt(text + prefill, prefill)


def encode_chat(text: str, tokenizer: Tokenizer, bos: str, eos: str) -> Tokens:
    """Tokens of a rendered prompt; BOS or EOS that the template wrote are not doubled."""
    if bos and tokenizer.add_bos:
        text = text.removeprefix(bos)
    if eos and tokenizer.add_eos:
        text = text.removesuffix(eos)
    return encode_text(text, tokenizer, add_special=True)


class TurnDelimiters:
    """The token sequences that open a message, found by rendering probes once per model."""

    def __init__(self, sequences: Sequence[Tokens]) -> None:
        self._sequences = [sequence for sequence in sequences if len(sequence)]

    def positions(self, prompt: Tokens) -> tuple[int, ...]:
        """Where messages begin in `prompt`, ascending, without position 0."""
        found: set[int] = set()
        for sequence in self._sequences:
            n = len(sequence)
            if n > len(prompt):
                continue
            windows = np.lib.stride_tricks.sliding_window_view(prompt, n)
            found.update(np.flatnonzero((windows == sequence).all(axis=1)).tolist())
        return tuple(sorted(position for position in found if position > 0))


_USER, _ANSWER = "ca7probe", "dog8probe"


def find_delimiters(template: AnyTemplate, tokenizer: Tokenizer) -> TurnDelimiters:
    """What stands between an answer and the next user message, and the other way round.

    Only the part from the first special token on counts: its tokens do not depend on the text around them.
    A template without special tokens between turns has no delimiters.
    """
    user = {"role": "user", "content": _USER}
    answer = {"role": "assistant", "content": _ANSWER}
    try:
        text = parse_and_render([user, answer, user, answer, user], template)
    except ApiError:
        # a template that cannot render an ordinary chat has no turns to find
        return TurnDelimiters(())
    first, second = text.find(_ANSWER), text.find(_USER, text.find(_ANSWER))
    third = text.find(_ANSWER, second)
    if min(first, second, third) < 0:
        return TurnDelimiters(())
    before_user = text[first + len(_ANSWER) : second]
    before_answer = text[second + len(_USER) : third]
    return TurnDelimiters([_opening(between, tokenizer) for between in (before_user, before_answer)])


def parse_and_render(messages: Messages, template: AnyTemplate) -> str:
    parsed = parse_messages(messages, template)
    return template.render(parsed, add_generation_prompt=False, variables={})


def _opening(between: str, tokenizer: Tokenizer) -> Tokens:
    """From the last special token that is followed by text, without the token that may merge with content."""
    ids = tokenizer.encode(between, add_special=False, parse_special=True)
    special = [i for i, token in enumerate(ids) if tokenizer.token_bytes(token) == b""]
    if not special:
        return np.array((), dtype=np.int32)
    start = special[-1]
    end = len(ids) - 1 if len(ids) - start > 2 else len(ids)
    return np.array(ids[start:end], dtype=np.int32)
