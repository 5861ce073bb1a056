"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from quart import Response
from quart_trio import QuartTrio

from daemon.anthropic_format import MessagesFormat
from daemon.anthropic_request import chat_request
from daemon.chat_request import ChatTurn, prepare_chat
from daemon.replies import json_reply, read_request
from daemon.requests import MessagesRequest
from daemon.routes.generation import answer, make_completions, whole_prompt
from daemon.service import Service


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/v1/messages")
    async def messages() -> Response:
        turn = await _read()
        completions = make_completions(service, [turn.tokens], turn.settings, turn.turn_starts)
        return await answer(service, completions, MessagesFormat(service.ready.model, turn.prompt.prefill))

    @app.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        turn = await _read()
        return json_reply({"input_tokens": len(whole_prompt(service, turn.tokens))})

    async def _read() -> ChatTurn:
        body = await read_request(MessagesRequest, service.workers)
        return await prepare_chat(await service.workers.run(chat_request, body), service)
