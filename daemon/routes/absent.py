"""Routes of llama-server and ik_llama.cpp that emberd has no use for: each answers with the reason."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from quart import Response
from quart_trio import QuartTrio

from daemon.errors import ApiError, invalid
from daemon.replies import json_reply, request_body
from daemon.requests import ControlRequest, decode
from daemon.service import Service

_ROUTER = "emberd serves one model per process: models are not loaded or removed while it runs"
_AUDIO = "audio is not supported"
_STREAMS = "streams are not kept for clients that went away; ask again, the prompt is remembered"
_ADAPTERS = "adapters and control vectors are not supported yet"

_NOT_SUPPORTED: tuple[tuple[str, str, str], ...] = (
    ("POST", "/models", _ROUTER),
    ("DELETE", "/models", _ROUTER),
    ("POST", "/models/load", _ROUTER),
    ("POST", "/models/unload", _ROUTER),
    ("GET", "/models/sse", _ROUTER),
    ("POST", "/v1/audio/transcriptions", _AUDIO),
    ("POST", "/audio/transcriptions", _AUDIO),
    ("POST", "/v1/systemone", "this model makes no decisions"),
    ("GET", "/v1/stream", _STREAMS),
    ("DELETE", "/v1/stream", _STREAMS),
    ("POST", "/v1/streams/lookup", _STREAMS),
    ("POST", "/predict", "Vertex AI's request format is not supported"),
    ("POST", "/control-vectors/load", _ADAPTERS),
    ("POST", "/control-vectors/unload", _ADAPTERS),
    ("POST", "/control-vectors/apply", _ADAPTERS),
)

_DISABLED = (("GET", "/tools"), ("POST", "/tools"), ("GET", "/cors-proxy"), ("POST", "/cors-proxy"))
_EMPTY = ("/lora-adapters", "/control-vectors")


def register(app: QuartTrio, service: Service) -> None:
    for method, path, reason in _NOT_SUPPORTED:
        app.add_url_rule(path, f"absent {method} {path}", _refusing(reason), methods=[method])
    for method, path in _DISABLED:
        app.add_url_rule(path, f"disabled {method} {path}", _disabled, methods=[method])
    for path in _EMPTY:
        app.add_url_rule(path, f"empty {path}", _nothing, methods=["GET"])

    @app.post("/lora-adapters")
    async def scale_adapters() -> Response:
        try:
            scales = msgspec.json.decode(await request_body(), type=list[Any])
        except (msgspec.DecodeError, RecursionError):
            raise invalid("Request body must be an array") from None
        if scales:
            raise ApiError(501, _ADAPTERS)
        return json_reply({"success": True})

    @app.post("/v1/chat/completions/control")
    async def control() -> Response:
        body = decode(await request_body(), ControlRequest)
        if not body.id:
            raise invalid("missing completion id")
        if body.action != "reasoning_end":
            raise invalid("unknown control action")
        return json_reply({"success": False, "message": "reasoning control is not supported yet"})


def _refusing(reason: str) -> Callable[[], Awaitable[Response]]:
    async def refuse() -> Response:
        raise ApiError(501, reason)

    return refuse


async def _disabled() -> Response:
    error = {"message": "this feature is disabled", "type": "feature_disabled"}
    return json_reply({"error": error}, 403)


async def _nothing() -> Response:
    return json_reply([])
