"""What all generating routes share: from prompts and settings to an answer."""

import math
from collections.abc import Sequence
from dataclasses import replace

from quart import Response

from daemon.completion import Completion
from daemon.exchange import current_exchange
from daemon.replies import json_reply
from daemon.service import Service
from daemon.settings import Settings
from daemon.streaming import EventStream, Format, collect
from daemon.system_prompt import after_system
from runtime.engine.messages import GenerateRequest, SamplingParams, Tokens


def make_completions(
    service: Service, prompts: Sequence[Tokens], settings: Settings, turn_starts: tuple[int, ...] = ()
) -> list[Completion]:
    """`n_cmpl` completions of each prompt, numbered in order; further ones of a prompt get further seeds.

    The system prompt of all slots is put before each.
    """
    ready = service.ready
    if service.system_prompt.anti_prompt:
        settings = replace(settings, stop=(*settings.stop, service.system_prompt.anti_prompt))
    completions: list[Completion] = []
    for own in prompts:
        prompt = whole_prompt(service, own)
        shift = len(prompt) - len(own)
        for copy in range(settings.n_cmpl):
            request = GenerateRequest(
                request_id=ready.client.next_request_id(),
                prompt=prompt,
                sampling=_seeded(settings.sampling, copy),
                root=ready.root,
                n_predict=settings.n_predict,
                stop=settings.stop,
                id_slot=settings.id_slot if settings.n_cmpl == 1 else -1,
                cache_prompt=settings.cache_prompt,
                return_progress=settings.return_progress,
                store=settings.store,
                turn_starts=tuple(start + shift for start in turn_starts),
            )
            completions.append(Completion(len(completions), request, settings))
    return completions


def whole_prompt(service: Service, prompt: Tokens) -> Tokens:
    """What the model reads for `prompt`: the system prompt of all slots comes first."""
    return after_system(service.system_tokens, prompt, service.ready.model.tokenizer)


def _seeded(sampling: SamplingParams, copy: int) -> SamplingParams:
    if sampling.seed in (-1, 0xFFFFFFFF) or copy == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + copy) & 0xFFFFFFFF)


async def answer(service: Service, completions: list[Completion], format: Format) -> Response:
    """Generate and answer, as one object or as a stream. The first event of a stream decides the status."""
    exchange = current_exchange()
    exchange.completions = completions
    client, workers = service.ready.client, service.workers
    generation = client.generate(
        [completion.request for completion in completions],
        service.config.request_timeout or math.inf,
    )
    exchange.on_end(generation.close)
    settings = completions[0].settings
    if not settings.stream:
        await collect(generation, completions)
        return json_reply(await workers.run(format.whole, completions))
    first = await generation.receive()
    body = EventStream(generation, completions, format, first, settings.sse_ping_interval, workers)
    return Response(
        body,
        content_type="text/event-stream",
        headers={"X-Accel-Buffering": "no", "Cache-Control": "no-cache"},
    )
