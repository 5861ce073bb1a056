"""``/completion``, ``/completions`` and ``/v1/completions``."""

from dataclasses import replace
from typing import Any

from quart import Response
from quart_trio import QuartTrio

from daemon.completion import Completion
from daemon.errors import ApiError, invalid, invalid_field
from daemon.infill import gap_prompt, require_infill
from daemon.model import ServedModel
from daemon.native_format import NativeFormat
from daemon.openai_format import TextFormat
from daemon.replies import read_request
from daemon.requests import CompletionRequest, TextCompletionRequest
from daemon.routes.generation import answer, make_completions
from daemon.service import Service
from daemon.settings import Settings
from daemon.text import encode_prompt, split_prompts
from daemon.unsupported import refuse_unsupported
from runtime.engine.messages import GenerateRequest, Tokens
from runtime.tokenizers import Tokenizer

MAX_PROMPTS = 1024


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/completion", endpoint="completion")
    @app.post("/completions", endpoint="completions")
    async def native() -> Response:
        body = await read_request(CompletionRequest, service.workers)
        _, prompts, several = await _prepare(body, "", body.n_cmpl or body.n or 1)
        settings = await _settings(body)
        completions = make_completions(service, prompts, settings)
        format = NativeFormat(service.ready.model, several)
        return await answer(service, completions, format)

    @app.post("/v1/completions")
    async def text() -> Response:
        body = await read_request(TextCompletionRequest, service.workers)
        n, best_of = _counts(body)
        if body.suffix:
            require_infill(service.ready.model.tokenizer)
        singles, prompts, _ = await _prepare(body, body.suffix or "", max(n, best_of))
        settings = await _settings(body)
        if settings.echo and settings.sampling.n_probs:
            raise ApiError(501, "Field 'echo': probabilities of the prompt's tokens are not supported")
        model = service.ready.model
        if best_of <= n:
            completions = make_completions(service, prompts, settings)
        else:
            completions = make_completions(service, prompts, replace(settings, n_cmpl=best_of))
            for completion in completions:
                completion.request = _scored(completion.request)
        echoed = await service.workers.run(_echoed, singles, completions, model) if settings.echo else ()
        format = TextFormat(model, echoed, n if best_of > n else None)
        return await answer(service, completions, format)

    def _counts(body: TextCompletionRequest) -> tuple[int, int]:
        """How many completions of a prompt are shown, and how many are made to choose from."""
        n = body.n_cmpl or body.n or 1
        best_of = body.best_of or n
        if best_of <= n:
            return n, n
        if best_of > service.config.n_parallel:
            limit = f"Value must be between 1 <= value <= {service.config.n_parallel}, but got {best_of}"
            raise invalid_field("best_of", limit)
        if body.stream:
            raise invalid_field("best_of", "what is yet to be chosen cannot be streamed")
        return n, best_of

    async def _settings(body: CompletionRequest) -> Settings:
        n_probs = body.n_probs or body.logprobs or 0
        return await service.workers.run(service.ready.defaults.resolve, body, n_probs)

    async def _prepare(
        body: CompletionRequest, suffix: str, n_each: int
    ) -> tuple[list[Any], list[Tokens], bool]:
        """The prompts as given and as tokens, and whether they came as an array of several."""
        refuse_unsupported(body)
        if body.prompt is None:
            raise invalid("Field 'prompt': is required")
        singles, several = split_prompts(body.prompt)
        if len(singles) * n_each > MAX_PROMPTS:
            raise invalid_field("prompt", f"more than {MAX_PROMPTS} completions in one request")
        await service.take_system_prompt(body.system_prompt)
        tokenizer = service.ready.model.tokenizer
        if suffix:
            first = service.config.spm_infill
            return singles, await service.workers.run(_around_gap, singles, suffix, tokenizer, first), several
        return singles, await service.workers.run(_encode_all, singles, tokenizer), several


def _encode_all(prompts: list[Any], tokenizer: Tokenizer) -> list[Tokens]:
    return [encode_prompt(prompt, tokenizer) for prompt in prompts]


def _around_gap(prompts: list[Any], suffix: str, tokenizer: Tokenizer, suffix_first: bool) -> list[Tokens]:
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise invalid_field("suffix", "the prompt must be text")
    return [gap_prompt(prompt, suffix, tokenizer, suffix_first=suffix_first) for prompt in prompts]


def _scored(request: GenerateRequest) -> GenerateRequest:
    """The same request with the probability of each token in its answer."""
    sampling = request.sampling
    return replace(request, sampling=replace(sampling, n_probs=max(1, sampling.n_probs)))


def _echoed(singles: list[Any], completions: list[Completion], model: ServedModel) -> list[str]:
    """By completion: its prompt as it was given, tokens as their text."""
    n_each = len(completions) // len(singles)
    texts = [_prompt_text(single, model) for single in singles]
    return [texts[completion.index // n_each] for completion in completions]


def _prompt_text(single: Any, model: ServedModel) -> str:
    if isinstance(single, list):
        return model.decode(encode_prompt(single, model.tokenizer))
    return str(single["prompt_string"] if isinstance(single, dict) else single)
