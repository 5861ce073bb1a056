"""``POST /infill``: what belongs between two texts."""

from quart import Response
from quart_trio import QuartTrio

from daemon.infill import InfillLimits, check_infill, infill_prompt
from daemon.native_format import NativeFormat
from daemon.replies import read_request
from daemon.requests import InfillRequest
from daemon.routes.generation import answer, make_completions
from daemon.service import Service
from daemon.unsupported import refuse_unsupported


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/infill")
    async def infill() -> Response:
        body = await read_request(InfillRequest, service.workers)
        ready, config = service.ready, service.config
        refuse_unsupported(body)
        check_infill(body, ready.model.tokenizer)
        n_probs = body.n_probs or body.logprobs or 0
        settings = await service.workers.run(ready.defaults.resolve, body, n_probs)
        limits = InfillLimits(ready.model.n_ctx, config.n_batch, settings.n_predict, config.spm_infill)
        prompt = await service.workers.run(infill_prompt, body, ready.model.tokenizer, limits)
        completions = make_completions(service, [prompt], settings)
        return await answer(service, completions, NativeFormat(ready.model, several=False))
