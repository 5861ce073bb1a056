"""``POST /store/forget``: a conversation or a prompt leaves memory and store with all that begins with it."""

from quart import Response
from quart_trio import QuartTrio

from daemon.chat import encode_chat
from daemon.chat_request import render_request
from daemon.errors import ApiError, invalid
from daemon.replies import json_reply, read_request
from daemon.requests import ForgetRequest
from daemon.routes.generation import whole_prompt
from daemon.saves import SaveError
from daemon.service import Service
from daemon.text import encode_prompt
from runtime.engine.messages import Tokens
from runtime.memory.prefix import Render
from runtime.tokenizers import Tokenizer


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/store/forget")
    async def forget() -> Response:
        body = await read_request(ForgetRequest, service.workers)
        if (body.messages is None) == (body.prompt is None) or body.messages == []:
            raise invalid("Expected either 'messages' or 'prompt'")
        text = await service.workers.run(_text_of, body, service)
        try:
            gone = await service.ready.saves.forget(text, _renderer(service.ready.model.tokenizer))
        except SaveError as error:
            raise ApiError(501, f"It is forgotten in memory, but not in the store: {error}") from error
        return json_reply(
            {"n_blocks_ram": gone.n_blocks_ram, "n_blocks": gone.n_blocks, "n_bytes": gone.n_bytes}
        )


def _text_of(body: ForgetRequest, service: Service) -> bytes:
    """What stored text has to begin with. Raises ApiError 400."""
    model = service.ready.model
    if body.messages is None:
        tokens = encode_prompt(body.prompt, model.tokenizer)
        if not len(tokens) or body.prompt == "":
            raise invalid("Field 'prompt': is empty, and everything begins with it")
    else:
        tokens = encode_chat(_conversation(body, service), model.tokenizer, model.bos_text, model.eos_text)
    if model.tokenizer.add_eos and len(tokens) and tokens[-1] == model.tokenizer.eos_id:
        tokens = tokens[:-1]
    text = _renderer(model.tokenizer)(whole_prompt(service, tokens))
    if not text:
        raise invalid("This has no text, and everything begins with it")
    return text


def _conversation(body: ForgetRequest, service: Service) -> str:
    """The messages' text up to where the last one might go on.

    A page that asks two questions before the first is answered sends them as one.
    """
    body.add_generation_prompt = False
    text = render_request(body, service).text
    content = body.messages[-1].get("content")
    if not isinstance(content, str) or not content.strip():
        return text
    end = text.rfind(content.strip())
    return text if end < 0 else text[: end + len(content.strip())]


def _renderer(tokenizer: Tokenizer) -> Render:
    """Ids that a model has beyond its vocabulary have no text."""

    def render(tokens: Tokens) -> bytes:
        known = (token for token in tokens.tolist() if token < tokenizer.n_vocab)
        return b"".join(tokenizer.token_bytes(token, special=True) for token in known)

    return render
