"""The web application: routes, and what holds for all of them (errors, keys, CORS)."""

import hmac
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Request, Response
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge, RequestTimeout

from daemon import cors
from daemon.answer import Answer
from daemon.errors import LOADING, NOT_FOUND, SHUTTING_DOWN, ApiError, from_exception
from daemon.exchange import SCOPE_KEY, Exchange
from daemon.hosts import AllowedHosts
from daemon.logs import log_failure
from daemon.quart_app import App
from daemon.replies import error_reply
from daemon.routes import (
    about,
    absent,
    anthropic,
    chat,
    completion,
    embeddings,
    forget,
    health,
    infill,
    metrics,
    models,
    page,
    responses,
    saves,
    slot_list,
    slots,
    text,
)
from daemon.service import Service

MAX_BODY = 16 * 2**20

_ROUTES = (
    health,
    about,
    models,
    completion,
    infill,
    chat,
    anthropic,
    responses,
    embeddings,
    text,
    slots,
    slot_list,
    saves,
    forget,
    metrics,
    absent,
)

WRONG_HOST = "The Host header names a server that this is not; --allowed-hosts adds further names"

PUBLIC = frozenset({"/health", "/v1/health"})

ASGIApp = Callable[[Scope, ASGIReceiveCallable, ASGISendCallable], Awaitable[None]]


def create_app(service: Service) -> ASGIApp:
    """The whole HTTP surface as one ASGI application."""
    assets = page.load_assets(service.config)
    app = App(_gate(service, assets), partial(cors.add_headers, config=service.config))
    # a prefill may take minutes: only stalled reading and writing is limited, by the server
    app.config["RESPONSE_TIMEOUT"] = None
    app.config["BODY_TIMEOUT"] = service.config.timeout
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.url_map.strict_slashes = False
    # a model may be named by its path
    app.url_map.merge_slashes = False
    _add_errors(app)
    for routes in _ROUTES:
        routes.register(app, service)
    page.register(app, assets)
    return _Exchanges(app, service.config.api_prefix)


def _gate(service: Service, assets: page.Assets) -> Callable[[Request], Response | None]:
    """What is asked of every request before it is looked at."""
    hosts = AllowedHosts(service.config.hosts, service.config.allowed_hosts.split(","))

    def gate(request: Request) -> Response | None:
        if not hosts.allows(request.headers.get("Host", "")):
            raise ApiError(403, WRONG_HOST)
        if request.method == "OPTIONS":
            return Response(b"", content_type="text/html")
        public = request.path in PUBLIC or (request.method in ("GET", "HEAD") and request.path in assets)
        if not service.is_ready and request.path not in assets:
            raise LOADING
        if service.api_keys and not public:
            _check_key(request, service.api_keys)
        if service.stopping and request.method == "POST":
            raise SHUTTING_DOWN
        return None

    return gate


def _check_key(request: Request, keys: tuple[bytes, ...]) -> None:
    given = request.headers.get("Authorization") or request.headers.get("X-Api-Key") or ""
    if given[:7].lower() == "bearer ":
        given = given[7:]
    key = given.strip().encode("latin-1")
    # every key is compared, in constant time, so that timing tells nothing
    if not max([hmac.compare_digest(key, known) for known in keys]):
        raise ApiError(401, "Invalid API Key")


def _add_errors(app: App) -> None:
    @app.errorhandler(ApiError)
    async def api_error(error: ApiError) -> Response:
        return error_reply(error)

    @app.errorhandler(HTTPException)
    async def http_error(error: HTTPException) -> Response:
        if isinstance(error, RequestEntityTooLarge):
            return error_reply(ApiError(413, f"The request body is larger than {MAX_BODY} bytes"))
        if isinstance(error, RequestTimeout):
            return error_reply(ApiError(408, "The request body did not arrive in time"))
        if error.code in (404, 405):
            return error_reply(NOT_FOUND)
        return error_reply(ApiError(error.code or 500, error.description or "Bad request"))

    @app.errorhandler(Exception)
    async def any_error(error: Exception) -> Response:
        log_failure(error)
        return error_reply(from_exception(error))


class _Exchanges:
    """Gives every request its `Exchange`, ends it, and takes --api-prefix off the path."""

    def __init__(self, app: App, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._prefix and scope["path"] == self._prefix:
            await _redirect(send, f"{self._prefix}/")
            return
        exchange = Exchange(scope["method"], scope["path"])
        answer = Answer(scope, send, exchange)
        path = scope["path"]
        if self._prefix:
            path = path.removeprefix(self._prefix) if path.startswith(self._prefix + "/") else "/\0"
        inner: Any = {**scope, "path": path, SCOPE_KEY: exchange}
        try:
            await self._app(inner, receive, answer.send)
        finally:
            exchange.end()


async def _redirect(send: ASGISendCallable, location: str) -> None:
    headers = [(b"location", location.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 308, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
