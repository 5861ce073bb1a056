"""From Anthropic's messages to a chat request (http-api.md 22)."""

import re
from typing import Any

import msgspec

from daemon.errors import invalid, not_supported
from daemon.requests import ChatRequest, MessagesRequest, native_fields

_DEFAULT_MAX_TOKENS = 4096

_BILLING = re.compile(r"(x-anthropic-billing-header:[^\n]*?\bcch=)[0-9a-zA-Z]{5}(?=;)")


def chat_request(body: MessagesRequest) -> ChatRequest:
    """The same conversation as OpenAI writes it. Raises ApiError 400 or, naming the field, 501."""
    _refuse_thinking(body.thinking)
    if body.messages is None:
        raise invalid("'messages' is required")
    if not isinstance(body.messages, list):
        raise invalid("Expected 'messages' to be an array")
    messages: list[dict[str, Any]] = []
    if system := _system(body.system):
        messages.append({"role": "system", "content": system})
    for message in body.messages:
        messages += _messages(message)
    fields = native_fields(body)
    if body.n_predict is None and body.max_completion_tokens is None and body.max_tokens is None:
        fields["max_tokens"] = _DEFAULT_MAX_TOKENS
    return ChatRequest(
        **fields | {"n": None, "n_cmpl": None, "stop": body.stop_sequences or body.stop},
        messages=messages,
        tools=body.tools,
        tool_choice=_tool_choice(body.tool_choice),
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _refuse_thinking(thinking: Any) -> None:
    if thinking is None:
        return
    if not isinstance(thinking, dict):
        raise invalid("Field 'thinking': Expected object")
    if thinking.get("type") == "enabled":
        raise not_supported("thinking", "a thinking budget is not supported yet")


def _system(system: Any) -> str:
    """Text of ``system``: a string or text blocks, which follow each other without a space."""
    if system is None:
        return ""
    if isinstance(system, str):
        return steady(system)
    if not isinstance(system, list):
        raise invalid("Field 'system': Expected a string or an array of text blocks")
    return "".join(steady(_text(block)) for block in system)


def steady(text: str) -> str:
    """`text` without the checksum that Claude Code changes with each request in its first line.

    It would make every prompt differ from the last one near its beginning, so that nothing could be reused.
    """
    return _BILLING.sub(r"\1fffff", text, count=1) if text.startswith("x-anthropic-billing-header:") else text


def _text(block: Any) -> str:
    if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise invalid("Expected a block of type text with a 'text'")
    return str(block["text"])


def _messages(message: Any) -> list[dict[str, Any]]:
    """One message becomes several when it carries results of tools, which have a role of their own."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise invalid("Expected each message to be an object with a 'role'")
    role, content = message["role"], message.get("content")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in content:
        match _type(block):
            case "text":
                parts.append({"type": "text", "text": block.get("text")})
            case "image":
                parts.append({"type": "image_url", "image_url": {"url": ""}})
            case "thinking":
                thoughts.append(str(block.get("thinking", "")))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(block))
            case "tool_result":
                results.append(_result(block))
            case kind:
                raise invalid(f"unsupported content block type: {kind[:80]}")
    own: dict[str, Any] = {"role": role, "content": parts}
    if calls:
        own["tool_calls"] = calls
    if thoughts:
        own["reasoning_content"] = "\n".join(thoughts)
    is_empty = not (parts or calls or thoughts)
    return results if is_empty and results else [own, *results]


def _type(block: Any) -> str:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise invalid("Missing 'type' in a block of 'content'")
    return str(block["type"])


def _call(block: dict[str, Any]) -> dict[str, Any]:
    arguments = msgspec.json.encode(block.get("input", {})).decode()
    function = {"name": block.get("name", ""), "arguments": arguments}
    return {"id": block.get("id", ""), "type": "function", "function": function}


def _result(block: dict[str, Any]) -> dict[str, Any]:
    content = block.get("content", "")
    if isinstance(content, list):
        content = "".join(_text(part) for part in content)
    if not isinstance(content, str):
        raise invalid("Expected 'content' of a tool_result to be a string or an array of text blocks")
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": content}


def _tool_choice(choice: Any) -> str | None:
    if choice is None:
        return None
    kind = choice.get("type") if isinstance(choice, dict) else None
    names = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}
    if kind not in names:
        raise invalid("Field 'tool_choice': Expected an object of type auto, any, tool or none")
    return names[kind]
