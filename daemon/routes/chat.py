"""``/v1/chat/completions``, its token count, and ``/apply-template``."""

from quart import Response
from quart_trio import QuartTrio

from daemon.chat_request import check_chat, prepare_chat, render_request
from daemon.openai_format import ChatFormat
from daemon.replies import json_reply, read_request
from daemon.requests import ChatRequest
from daemon.routes.generation import answer, make_completions, whole_prompt
from daemon.service import Service


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/v1/chat/completions", endpoint="v1_chat")
    @app.post("/chat/completions", endpoint="chat")
    async def chat() -> Response:
        turn = await prepare_chat(await read_request(ChatRequest, service.workers), service)
        completions = make_completions(service, [turn.tokens], turn.settings, turn.turn_starts)
        return await answer(service, completions, ChatFormat(service.ready.model, turn.prompt.prefill))

    @app.post("/v1/chat/completions/input_tokens", endpoint="v1_chat_input_tokens")
    @app.post("/chat/completions/input_tokens", endpoint="chat_input_tokens")
    async def input_tokens() -> Response:
        turn = await prepare_chat(await read_request(ChatRequest, service.workers), service)
        n_tokens = len(whole_prompt(service, turn.tokens))
        return json_reply({"input_tokens": n_tokens, "object": "response.input_tokens"})

    @app.post("/apply-template")
    async def apply_template() -> Response:
        body = await read_request(ChatRequest, service.workers)
        await check_chat(body, service)
        prompt = await service.workers.run(render_request, body, service)
        return json_reply({"prompt": prompt.text})
