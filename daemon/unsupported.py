"""Fields of features that emberd does not have yet: neutral values pass, others are refused by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daemon.errors import invalid, not_supported
from daemon.requests import ChatRequest, CompletionFields


@dataclass(frozen=True, slots=True)
class Neutral:
    """Values that ask for nothing, and one of them."""

    includes: Callable[[Any], bool]
    example: Any = None


_EMPTY = Neutral(lambda value: value in (None, "", [], {}))


def _at_most(limit: float) -> Neutral:
    return Neutral(lambda value: bool(value <= limit), limit)


def _equals(neutral: Any) -> Neutral:
    return Neutral(lambda value: bool(value == neutral), neutral)


_SAMPLER = "this sampler is not supported yet"
_CONSTRAINED = "constrained output is not supported yet"
_BANS = "bans are not supported yet"
_REASONING = "reasoning control is not supported yet"
_MEDIA = "this server does not support media"

FIELDS: dict[str, tuple[Neutral, str]] = {
    "dynatemp_range": (_at_most(0), _SAMPLER),
    "tfs_z": (Neutral(lambda value: bool(value >= 1), 1), _SAMPLER),
    "top_n_sigma": (_at_most(0), _SAMPLER),
    "xtc_probability": (_at_most(0), _SAMPLER),
    "penalty_prompt": (_EMPTY, "a separate penalty prompt is not supported yet"),
    "dry_multiplier": (_at_most(0), _SAMPLER),
    "mirostat": (_at_most(0), _SAMPLER),
    "adaptive_target": (Neutral(lambda value: bool(value < 0), -1), _SAMPLER),
    "grammar": (_EMPTY, _CONSTRAINED),
    "json_schema": (_equals(None), _CONSTRAINED),
    "grammar_lazy": (_equals(False), _CONSTRAINED),
    "grammar_triggers": (_EMPTY, _CONSTRAINED),
    "n_cache_reuse": (_equals(0), "moving cached positions is not supported"),
    "n_indent": (_equals(0), "stopping by indentation is not supported yet"),
    "t_max_predict_ms": (_equals(-1), "a time limit is not supported yet"),
    "lora": (_EMPTY, "adapters are not supported yet"),
    "reasoning_budget_tokens": (_equals(-1), _REASONING),
    "thinking_budget_tokens": (_equals(-1), _REASONING),
    "reasoning_control": (_equals(False), _REASONING),
    "reasoning_format": (Neutral(lambda value: value in ("none", "auto"), "none"), _REASONING),
    "banned_strings": (_EMPTY, _BANS),
    "banned_regex": (_EMPTY, _BANS),
    "banned_regex_case_insensitive": (_EMPTY, _BANS),
    "expiring_logit_bias": (_EMPTY, _BANS),
    "allowlist_piece_array": (_EMPTY, _BANS),
    "image_data": (_EMPTY, _MEDIA),
}
"""What asks for nothing in each field, and what to say to anything else."""


def refuse_unsupported(request: CompletionFields) -> None:
    """Raise ApiError 501 naming the first field that asks for something emberd does not do."""
    for name, (neutral, what) in FIELDS.items():
        value = getattr(request, name)
        if value is not None and not neutral.includes(value):
            raise not_supported(name, what)


def refuse_unsupported_chat(request: ChatRequest) -> None:
    """The same for what only chat requests carry. Raises ApiError 400 for malformed ones."""
    kind = request.response_format
    if kind is not None:
        if not isinstance(kind, dict):
            raise invalid("Field 'response_format': Expected object")
        name = kind.get("type", "text")
        if name in ("json_object", "json_schema"):
            raise not_supported("response_format", _CONSTRAINED)
        if name != "text":
            raise invalid(f'response_format type must be one of "text" or "json_object", but got: {name}')
    choice = request.tool_choice
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        raise invalid(f"Invalid tool_choice: {choice[:80]}")
    if request.tools and choice != "none":
        raise not_supported("tools", 'tool calls are not supported yet (tool_choice "none" passes)')
