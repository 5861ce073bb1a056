"""``/tokenize`` and ``/detokenize``."""

from typing import Any

from quart import Response
from quart_trio import QuartTrio

from daemon.errors import invalid_field
from daemon.model import ServedModel
from daemon.replies import json_reply, read_request
from daemon.requests import DetokenizeRequest, TokenizeRequest
from daemon.service import Service
from daemon.text import encode_mixed


def register(app: QuartTrio, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize() -> Response:
        body = await read_request(TokenizeRequest, service.workers)
        return json_reply({"tokens": await service.workers.run(_tokenize, body, service.ready.model)})

    @app.post("/detokenize")
    async def detokenize() -> Response:
        body = await read_request(DetokenizeRequest, service.workers)
        content = await service.workers.run(_detokenize, body.tokens or [], service.ready.model)
        return json_reply({"content": content})


def _detokenize(tokens: list[int], model: ServedModel) -> str:
    n_vocab = model.tokenizer.n_vocab
    if any(not 0 <= token < n_vocab for token in tokens):
        raise invalid_field("tokens", f"ids must be between 0 and {n_vocab - 1}")
    return model.decode(tokens)


def _tokenize(body: TokenizeRequest, model: ServedModel) -> list[Any]:
    content = body.content
    if content is None:
        return []
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, str | int) and not isinstance(part, bool) for part in parts):
        raise invalid_field("content", "Expected a string, or an array of strings and token ids")
    tokens = encode_mixed(
        parts,
        model.tokenizer,
        add_special=bool(body.add_special),
        parse_special=body.parse_special is not False,
    )
    ids = [int(token) for token in tokens]
    return [_piece(token, model) for token in ids] if body.with_pieces else ids


def _piece(token: int, model: ServedModel) -> dict[str, Any]:
    data = model.token_bytes(token)
    try:
        return {"id": token, "piece": data.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(data)}
