"""What ``/openapi.json`` says of fields that are decoded as they come and checked where they are used."""

from typing import Any

from msgspec import Meta

_TEXT = {"type": "string"}
_ID = {"type": "integer", "minimum": 0}
_NULL = {"type": "null"}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _array(items: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **limits}


def _one_of(*shapes: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(shapes)}


def _meta(description: str, *shapes: dict[str, Any]) -> Meta:
    return Meta(description=description, extra_json_schema=_one_of(*shapes, _NULL))


def _block(kind: str, required: str = "", **properties: Any) -> dict[str, Any]:
    return _object(f"type {required}", type={"const": kind}, **properties)


_SINGLE = _one_of(
    _TEXT, _object("prompt_string", prompt_string=_TEXT), _array(_one_of(_ID, _TEXT), minItems=1)
)
_TEXT_BLOCK = _block("text", "text", text=_TEXT)
_CALL = _object(
    "function", id=_TEXT, type={"const": "function"}, function=_object("name arguments", name=_TEXT)
)

PROMPT = _meta(
    "a text; an array of token ids and texts; an object with `prompt_string`; or an array of such prompts",
    _SINGLE,
    _array(_SINGLE, minItems=1),
)

TOKENS_AND_TEXTS = _meta("a text, or an array of texts and token ids", _TEXT, _array(_one_of(_TEXT, _ID)))

CHAT_MESSAGES = _meta(
    "OpenAI's messages",
    _array(
        _object(
            "role content",
            role={"enum": ["system", "developer", "user", "assistant", "tool"]},
            content=_one_of(_TEXT, _array(_TEXT_BLOCK)),
            reasoning_content=_TEXT,
            tool_call_id=_TEXT,
            tool_calls=_array(_CALL),
        ),
        minItems=1,
    ),
)

ANTHROPIC_MESSAGES = _meta(
    "Anthropic's messages",
    _array(
        _object(
            "role content",
            role={"enum": ["user", "assistant"]},
            content=_one_of(
                _TEXT,
                _array(
                    _one_of(
                        _TEXT_BLOCK,
                        _block("thinking", "thinking", thinking=_TEXT),
                        _block("tool_use", "id name input", id=_TEXT, name=_TEXT, input=_object()),
                        _block(
                            "tool_result",
                            "tool_use_id content",
                            tool_use_id=_TEXT,
                            content=_one_of(_TEXT, _array(_TEXT_BLOCK)),
                        ),
                    )
                ),
            ),
        ),
        minItems=1,
    ),
)

SYSTEM = _meta("a text, or blocks of text", _TEXT, _array(_TEXT_BLOCK))

SYSTEM_PROMPT = _meta(
    "the system prompt of all slots from now on",
    _TEXT,
    _object("prompt", prompt=_TEXT, anti_prompt=_TEXT, assistant_name=_TEXT),
)

RESPONSES_INPUT = _meta(
    "a text, or items of a conversation",
    _TEXT,
    _array(
        _one_of(
            _object(
                "role content",
                role={"enum": ["user", "system", "developer"]},
                content=_one_of(_TEXT, _array(_block("input_text", "text", text=_TEXT))),
            ),
            _object(
                "role content",
                role={"const": "assistant"},
                content=_one_of(_TEXT, _array(_block("output_text", "text", text=_TEXT))),
            ),
            _block("function_call", "call_id name arguments", call_id=_TEXT, name=_TEXT, arguments=_TEXT),
            _block("function_call_output", "call_id output", call_id=_TEXT, output=_TEXT),
            _block("reasoning", "summary", content=_array(_block("reasoning_text", "text", text=_TEXT))),
        ),
        minItems=1,
    ),
)

LOGIT_BIAS = Meta(
    description="pairs of a token id or a text and what is added to its logit; false: never",
    extra_json_schema=_one_of(
        _array(
            {
                "type": "array",
                "prefixItems": [_one_of(_ID, _TEXT), _one_of({"type": "number"}, {"const": False})],
                "minItems": 2,
                "maxItems": 2,
            }
        ),
        {"type": "object", "additionalProperties": _one_of({"type": "number"}, {"const": False})},
    ),
)

TEXTS = _meta("texts", _array(_TEXT, minItems=1))

QUERY = _meta("a text", _TEXT)
