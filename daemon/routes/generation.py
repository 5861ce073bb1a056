"""What all generating routes share: from prompts and settings to an answer."""

from collections.abc import Sequence
from dataclasses import replace

from quart import Response

from daemon.completion import Completion
from daemon.exchange import current_exchange
from daemon.replies import json_reply
from daemon.service import Ready
from daemon.settings import Settings
from daemon.streaming import EventStream, Format, collect
from daemon.workers import Workers
from runtime.engine.messages import GenerateRequest, SamplingParams, Tokens


def make_completions(
    ready: Ready, prompts: Sequence[Tokens], settings: Settings, turn_starts: tuple[int, ...] = ()
) -> list[Completion]:
    """`n_cmpl` completions of each prompt, numbered in order; further ones of a prompt get further seeds."""
    completions: list[Completion] = []
    for prompt in prompts:
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
                turn_starts=turn_starts,
            )
            completions.append(Completion(len(completions), request, settings))
    return completions


def _seeded(sampling: SamplingParams, copy: int) -> SamplingParams:
    if sampling.seed in (-1, 0xFFFFFFFF) or copy == 0:
        return sampling
    return replace(sampling, seed=(sampling.seed + copy) & 0xFFFFFFFF)


async def answer(ready: Ready, workers: Workers, completions: list[Completion], format: Format) -> Response:
    """Generate and answer, as one object or as a stream. The first event of a stream decides the status."""
    exchange = current_exchange()
    exchange.completions = completions
    generation = ready.client.generate([completion.request for completion in completions])
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
