"""``/v1/responses`` and ``/v1/responses/input_tokens``."""

from quart import Response
from quart_trio import QuartTrio

from daemon.chat_request import ChatTurn, prepare_chat
from daemon.replies import json_reply, read_request
from daemon.requests import ResponsesRequest
from daemon.responses_format import ResponsesFormat
from daemon.responses_request import chat_request
from daemon.routes.generation import answer, make_completions, whole_prompt
from daemon.service import Service


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/v1/responses", endpoint="v1_responses")
    @app.post("/responses", endpoint="responses")
    async def responses() -> Response:
        turn = await _read()
        completions = make_completions(service, [turn.tokens], turn.settings, turn.turn_starts)
        return await answer(service, completions, ResponsesFormat(service.ready.model, turn.prompt.prefill))

    @app.post("/v1/responses/input_tokens", endpoint="v1_responses_input_tokens")
    @app.post("/responses/input_tokens", endpoint="responses_input_tokens")
    async def input_tokens() -> Response:
        turn = await _read()
        n_tokens = len(whole_prompt(service, turn.tokens))
        return json_reply({"input_tokens": n_tokens, "object": "response.input_tokens"})

    async def _read() -> ChatTurn:
        body = await read_request(ResponsesRequest, service.workers)
        return await prepare_chat(await service.workers.run(chat_request, body), service)
