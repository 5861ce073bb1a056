"""``/completion``, ``/completions`` and ``/v1/completions``."""

from typing import Any

from quart import Response
from quart_trio import QuartTrio

from daemon.errors import ApiError, invalid, invalid_field
from daemon.native_format import NativeFormat
from daemon.openai_format import TextFormat
from daemon.replies import request_body
from daemon.requests import CompletionRequest, TextCompletionRequest, decode
from daemon.routes.generation import answer, make_completions
from daemon.service import Service
from daemon.settings import Settings
from daemon.text import encode_prompt, split_prompts
from daemon.unsupported import refuse_unsupported
from runtime.engine.messages import Tokens
from runtime.tokenizers import Tokenizer

MAX_PROMPTS = 1024


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/completion", endpoint="completion")
    @app.post("/completions", endpoint="completions")
    async def native() -> Response:
        body = decode(await request_body(), CompletionRequest)
        prompts, several = await _prepare(body)
        settings = await _settings(body)
        completions = make_completions(service, prompts, settings)
        format = NativeFormat(service.ready.model, several)
        return await answer(service, completions, format)

    @app.post("/v1/completions")
    async def text() -> Response:
        body = decode(await request_body(), TextCompletionRequest)
        if body.echo:
            raise ApiError(501, "Field 'echo': repeating the prompt is not supported yet")
        if body.suffix:
            raise ApiError(501, "Field 'suffix': completing the middle is not supported yet")
        if (body.best_of or 1) > (body.n or body.n_cmpl or 1):
            raise ApiError(501, "Field 'best_of': choosing the best of several is not supported yet")
        prompts, _ = await _prepare(body)
        settings = await _settings(body)
        completions = make_completions(service, prompts, settings)
        format = TextFormat(service.ready.model)
        return await answer(service, completions, format)

    async def _settings(body: CompletionRequest) -> Settings:
        n_probs = body.n_probs or body.logprobs or 0
        return await service.workers.run(service.ready.defaults.resolve, body, n_probs)

    async def _prepare(body: CompletionRequest) -> tuple[list[Tokens], bool]:
        refuse_unsupported(body)
        if body.prompt is None:
            raise invalid("Field 'prompt': is required")
        singles, several = split_prompts(body.prompt)
        if len(singles) * (body.n or body.n_cmpl or 1) > MAX_PROMPTS:
            raise invalid_field("prompt", f"more than {MAX_PROMPTS} completions in one request")
        await service.take_system_prompt(body.system_prompt)
        tokenizer = service.ready.model.tokenizer
        return await service.workers.run(_encode_all, singles, tokenizer), several


def _encode_all(prompts: list[Any], tokenizer: Tokenizer) -> list[Tokens]:
    return [encode_prompt(prompt, tokenizer) for prompt in prompts]
