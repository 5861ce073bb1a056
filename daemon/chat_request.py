"""A chat request, whatever API it came by: checked, and turned into settings and a prompt."""

from dataclasses import dataclass
from typing import Any

from daemon.chat import ChatPrompt, encode_chat, parse_messages, render_chat
from daemon.errors import invalid, invalid_field
from daemon.requests import ChatRequest
from daemon.service import Service
from daemon.settings import Settings
from daemon.unsupported import refuse_unsupported, refuse_unsupported_chat
from runtime.engine.messages import Tokens

_DEFAULT_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """What the model shall continue, and how. `turn_starts` are positions where messages begin."""

    prompt: ChatPrompt
    tokens: Tokens
    turn_starts: tuple[int, ...]
    settings: Settings


async def prepare_chat(body: ChatRequest, service: Service) -> ChatTurn:
    """Raises ApiError: 400 for what is malformed, 501 for what emberd cannot do."""
    settings = await check_chat(body, service)
    await service.take_system_prompt(body.system_prompt)
    prompt, tokens, turn_starts = await service.workers.run(_encode, body, service)
    return ChatTurn(prompt, tokens, turn_starts, settings)


async def check_chat(body: ChatRequest, service: Service) -> Settings:
    """The settings of a request whose prompt is not needed. Raises ApiError."""
    refuse_unsupported(body)
    refuse_unsupported_chat(body)
    return await service.workers.run(service.ready.defaults.resolve, body, _n_probs(body))


def _n_probs(body: ChatRequest) -> int:
    if body.logprobs:
        return _DEFAULT_TOP_LOGPROBS if body.top_logprobs is None else max(1, body.top_logprobs)
    if body.top_logprobs:
        raise invalid("top_logprobs requires logprobs to be set to true")
    return body.n_probs or 0


def _encode(body: ChatRequest, service: Service) -> tuple[ChatPrompt, Tokens, tuple[int, ...]]:
    prompt = render_request(body, service)
    model = service.ready.model
    tokens = encode_chat(prompt.text, model.tokenizer, model.bos_text, model.eos_text)
    return prompt, tokens, service.ready.delimiters.positions(tokens)


def render_request(body: ChatRequest, service: Service) -> ChatPrompt:
    """The prompt's text. Slow for long chats: call it in `daemon.workers`. Raises ApiError 400."""
    template = service.ready.template
    messages = parse_messages(body.messages, template)
    continue_final = body.continue_final_message
    if isinstance(continue_final, str):
        if continue_final != "content":
            raise invalid_field("continue_final_message", "only true, false and content are supported yet")
        continue_final = True
    if continue_final and body.add_generation_prompt:
        raise invalid("Cannot set both add_generation_prompt and continue_final_message to true.")
    return render_chat(
        messages,
        template,
        _variables(body, service),
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final=continue_final,
        prefill_assistant=service.config.prefill_assistant,
    )


def _variables(body: ChatRequest, service: Service) -> dict[str, Any]:
    variables = {**service.config.template_variables, **(body.chat_template_kwargs or {})}
    if not isinstance(variables.get("enable_thinking", True), bool):
        raise invalid('invalid type for "enable_thinking" (expected boolean, got string)')
    if body.reasoning_effort == "none":
        variables["enable_thinking"] = False
    elif body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    for reserved in ("messages", "add_generation_prompt"):
        variables.pop(reserved, None)
    return variables
