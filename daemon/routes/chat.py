"""``/v1/chat/completions`` and ``/apply-template``."""

from typing import Any

from quart import Response
from quart_trio import QuartTrio

from daemon.chat import ChatPrompt, encode_chat, parse_messages, render_chat
from daemon.errors import invalid, invalid_field
from daemon.openai_format import ChatFormat
from daemon.replies import json_reply, request_body
from daemon.requests import ChatRequest, decode
from daemon.routes.generation import answer, make_completions
from daemon.service import Ready, Service
from daemon.settings import Settings
from daemon.unsupported import refuse_unsupported, refuse_unsupported_chat
from runtime.engine.messages import Tokens

_DEFAULT_TOP_LOGPROBS = 20


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/v1/chat/completions", endpoint="v1_chat")
    @app.post("/chat/completions", endpoint="chat")
    async def chat() -> Response:
        body, settings = await _read()
        ready = service.ready
        prompt, tokens, turn_starts = await service.workers.run(_encode, body, ready, service)
        completions = make_completions(ready, [tokens], settings, turn_starts)
        format = ChatFormat(ready.model, prompt.prefill)
        return await answer(ready, service.workers, completions, format)

    @app.post("/apply-template")
    async def apply_template() -> Response:
        body, _ = await _read()
        prompt = await service.workers.run(_render, body, service.ready, service)
        return json_reply({"prompt": prompt.text})

    async def _read() -> tuple[ChatRequest, Settings]:
        body = decode(await request_body(), ChatRequest)
        refuse_unsupported(body)
        refuse_unsupported_chat(body)
        return body, await service.workers.run(service.ready.defaults.resolve, body, _n_probs(body))


def _n_probs(body: ChatRequest) -> int:
    if body.logprobs:
        return _DEFAULT_TOP_LOGPROBS if body.top_logprobs is None else max(1, body.top_logprobs)
    if body.top_logprobs:
        raise invalid("top_logprobs requires logprobs to be set to true")
    return body.n_probs or 0


def _encode(body: ChatRequest, ready: Ready, service: Service) -> tuple[ChatPrompt, Tokens, tuple[int, ...]]:
    prompt = _render(body, ready, service)
    model = ready.model
    tokens = encode_chat(prompt.text, model.tokenizer, model.bos_text, model.eos_text)
    return prompt, tokens, ready.delimiters.positions(tokens)


def _render(body: ChatRequest, ready: Ready, service: Service) -> ChatPrompt:
    messages = parse_messages(body.messages, ready.template)
    continue_final = body.continue_final_message
    if isinstance(continue_final, str):
        if continue_final != "content":
            raise invalid_field("continue_final_message", "only true, false and content are supported yet")
        continue_final = True
    if continue_final and body.add_generation_prompt:
        raise invalid("Cannot set both add_generation_prompt and continue_final_message to true.")
    return render_chat(
        messages,
        ready.template,
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
