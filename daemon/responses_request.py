"""From OpenAI's responses API to a chat request (http-api.md 21)."""

from typing import Any

from daemon.errors import invalid, not_supported
from daemon.requests import ChatRequest, ResponsesRequest, native_fields


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """The same conversation as a chat request. Raises ApiError 400 or, naming the field, 501."""
    if body.previous_response_id:
        raise invalid("Field 'previous_response_id': answers are not kept, send the whole conversation")
    _refuse_format(body.text)
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else []
    messages += _conversation(body.input)
    fields = native_fields(body) | {"n": None, "n_cmpl": None}
    if body.max_output_tokens is not None:
        fields["max_tokens"] = body.max_output_tokens
    return ChatRequest(
        **fields,
        messages=messages,
        tools=[tool for tool in body.tools or [] if _is_function(tool)],
        tool_choice=body.tool_choice if isinstance(body.tool_choice, str) else None,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _refuse_format(text: Any) -> None:
    if text is None:
        return
    kind = text.get("format", {"type": "text"}) if isinstance(text, dict) else None
    if not isinstance(kind, dict):
        raise invalid("Field 'text': Expected object with an object 'format'")
    if kind.get("type", "text") != "text":
        raise not_supported("text.format", "constrained output is not supported yet")


def _is_function(tool: Any) -> bool:
    """Tools that only OpenAI's own servers run are left out, as llama-server does."""
    if not isinstance(tool, dict):
        raise invalid("Field 'tools': Expected an array of objects")
    return tool.get("type") == "function"


def _conversation(given: Any) -> list[dict[str, Any]]:
    if given is None:
        raise invalid("'input' is required")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise invalid("'input' must be a string or array of objects")
    messages: list[dict[str, Any]] = []
    for item in given:
        message = _message(item)
        if messages and message["role"] == messages[-1]["role"] == "assistant":
            _merge(messages[-1], message)
        else:
            messages.append(message)
    return messages


def _message(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise invalid("Expected each item of 'input' to be an object")
    role, kind = item.get("role"), item.get("type", "message")
    if role in ("user", "system", "developer") and kind == "message":
        return {"role": role, "content": _parts(item.get("content"), ("input_text",))}
    if role == "assistant" and kind == "message":
        return {"role": role, "content": _parts(item.get("content"), ("output_text", "refusal"))}
    if kind == "function_call":
        function = {"name": item.get("name", ""), "arguments": item.get("arguments", "")}
        call = {"id": str(item.get("call_id", "")), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        output = _parts(item.get("output"), ("input_text", "output_text"))
        return {"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": output}
    if kind == "reasoning":
        thoughts = [part.get("text") for part in item.get("content") or [] if isinstance(part, dict)]
        reasoning = "".join(text for text in thoughts if isinstance(text, str))
        return {"role": "assistant", "content": "", "reasoning_content": reasoning}
    raise invalid("Cannot determine type of 'item'")


def _parts(content: Any, kinds: tuple[str, ...]) -> Any:
    """Text, or the parts of a chat message; those that cannot be expressed keep their name for the error."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid("'content' must be a string or array of objects")
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "input_image":
            parts.append({"type": "image_url"})
        elif kind in kinds:
            parts.append({"type": "text", "text": part.get("refusal" if kind == "refusal" else "text")})
        else:
            raise invalid(f"'type' of a part must be one of {', '.join(kinds)}")
    return parts


def _merge(into: dict[str, Any], message: dict[str, Any]) -> None:
    """Add a further item of the assistant's turn to its message."""
    if message["content"]:
        into["content"] = _joined(into["content"], message["content"])
    if "tool_calls" in message:
        into["tool_calls"] = [*into.get("tool_calls", []), *message["tool_calls"]]
    if "reasoning_content" in message:
        into["reasoning_content"] = into.get("reasoning_content", "") + message["reasoning_content"]


def _joined(first: Any, second: Any) -> Any:
    if not first:
        return second
    as_parts = [[{"type": "text", "text": one}] if isinstance(one, str) else one for one in (first, second)]
    return [*as_parts[0], *as_parts[1]]
