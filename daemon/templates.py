"""Chat templates: which one a model uses, what it can express, and rendering it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2.exceptions import TemplateError

from daemon.errors import ApiError, invalid
from daemon.template_budget import Budget, TemplateBudgetExceeded
from daemon.template_environment import TemplateRefusal, compile_template, make_environment, render

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Used when the model has no template, and for ``--chat-template chatml``."""

RENDER_SECONDS = 10.0

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TemplateCaps:
    """What a template does with what it is given, found by rendering probes; shown in ``/props``."""

    supports_string_content: bool
    supports_typed_content: bool
    supports_tools: bool
    supports_tool_calls: bool
    supports_parallel_tool_calls: bool
    supports_system_role: bool
    supports_preserve_reasoning: bool
    supports_reasoning_effort: bool
    supports_object_arguments: bool


class ChatTemplate:
    """One compiled template. Rendering is slow for long chats: call it in `daemon.workers`.

    The constructor raises TemplateError when `source` cannot be compiled.
    """

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = compile_template(make_environment(), source)
        self.caps = _probe(self)

    def render(self, messages: Messages, *, add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        """The prompt of a conversation. `variables` are further names the template may use.

        Raises ApiError 400 when the template refuses the conversation or fails on it.
        """
        try:
            return self.try_render(messages, {**variables, "add_generation_prompt": add_generation_prompt})
        except TemplateRefusal as error:
            raise invalid(f"The chat template refused the messages: {error.message}") from None
        except TemplateBudgetExceeded as error:
            raise invalid(f"The messages cannot be rendered: {error.message}") from None
        except _TEMPLATE_FAULTS as error:
            raise invalid(f"The chat template failed on the messages: {error}") from None

    def try_render(self, messages: Messages, variables: Mapping[str, Any]) -> str:
        """Render with the errors as they come."""
        now = datetime.now().astimezone()
        known = {
            "date_string": now.strftime("%d %b %Y"),
            "datetime": now.strftime("%b %d %Y"),
            "functions": json.dumps(variables["tools"], indent=4) if variables.get("tools") else "",
            **self._tokens,
            **variables,
            "messages": messages,
        }
        return render(self._template, known, Budget(_size([messages, variables]), RENDER_SECONDS))


_TEMPLATE_FAULTS = (
    TemplateError,
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class BrokenTemplate:
    """Stands for a model's template that cannot be used: chats are refused, everything else works."""

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        self.caps = TemplateCaps(*(False,) * 9)

    def render(self, messages: Messages, *, add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        raise ApiError(501, f"The model's chat template cannot be used: {self.reason}")


AnyTemplate = ChatTemplate | BrokenTemplate


def _size(value: Any) -> int:
    """Characters in a JSON value."""
    size = 0
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, list | tuple):
            pending.extend(one)
            size += len(one)
        elif isinstance(one, dict):
            pending.extend(one)
            pending.extend(one.values())
    return size


_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "d",
        "parameters": {"type": "object", "properties": {"probe_arg": {"type": "string"}}, "required": []},
    },
}


def _call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}


def _user(content: Any = "probe_user") -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "probe_answer", **more}
    return message | {"tool_calls": list(calls)} if calls else message


def _probe(template: ChatTemplate) -> TemplateCaps:
    def shows(needle: str, messages: Messages, **variables: Any) -> bool:
        try:
            text = template.try_render(messages, {"add_generation_prompt": False, **variables})
        except _TEMPLATE_FAULTS:
            return False
        return needle in text

    def differs(messages: Messages, **variables: Any) -> bool:
        try:
            plain = template.try_render(messages, {"add_generation_prompt": True})
            return template.try_render(messages, {"add_generation_prompt": True, **variables}) != plain
        except _TEMPLATE_FAULTS:
            return False

    object_call = [_user(), _assistant(_call("probe_call", {"probe_arg": "probe_value"}))]
    text_call = [_user(), _assistant(_call("probe_call", '{"probe_arg": "probe_value"}'))]
    two_calls = [_user(), _assistant(_call("probe_call", {}), _call("probe_second", {}))]
    thinking = [_user(), _assistant(reasoning_content="probe_thought", content="probe_answer"), _user()]
    tool_calls = shows("probe_call", object_call) or shows("probe_call", text_call)
    return TemplateCaps(
        supports_string_content=shows("probe_user", [_user()]),
        supports_typed_content=_shows_typed(shows),
        supports_tools=shows("probe_tool", [_user()], tools=[_TOOL]),
        supports_tool_calls=tool_calls,
        supports_parallel_tool_calls=tool_calls and shows("probe_second", two_calls),
        supports_system_role=shows("probe_system", [{"role": "system", "content": "probe_system"}, _user()]),
        supports_preserve_reasoning=shows("probe_thought", thinking),
        supports_reasoning_effort=differs([_user()], reasoning_effort="probe_effort"),
        supports_object_arguments=shows("probe_value", object_call)
        and not shows('\\"probe_arg', object_call),
    )


def _shows_typed(shows: Any) -> bool:
    typed = [_user([{"type": "text", "text": "probe_part"}])]
    # a template that only prints its content would show the parts' Python or JSON notation
    return bool(shows("probe_part", typed) and not shows("'type'", typed) and not shows('"type"', typed))
