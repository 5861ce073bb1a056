"""Quart with what this daemon needs of it, which is routes, requests, responses and errors.

A small request costs the event loop a third less than with quart's own classes.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable
from quart import Request, Response
from quart.ctx import RequestContext
from quart.utils import encode_headers
from quart.wrappers.response import DataBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioRequest
from quart_trio.wrappers.request import TrioBody

from daemon.incoming import INCOMING_KEY, Incoming


class Body(TrioBody):
    """A request's body, which may be here already."""

    def take(self) -> bytes | None:
        """All of it, once; None when more is to come. Raises RequestEntityTooLarge."""
        if self._must_raise is not None:
            raise self._must_raise
        if not self._complete.is_set():
            return None
        data = bytes(self._data)
        self.clear()
        return data


class AppRequest(TrioRequest):
    body_class = Body


class OneTask(TrioASGIHTTPConnection):
    """Handles a request in the task that brings it, where quart starts one that listens and one that works.

    The body is filled, and a client that goes away cancels, from the task that reads the connection.
    """

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        request = self._create_request_from_scope(send)
        incoming: Incoming = self.scope["state"][INCOMING_KEY]
        with trio.CancelScope() as work:

            def take(event: ASGIReceiveEvent) -> None:
                if event["type"] != "http.request":
                    work.cancel()
                    return
                request.body.append(event["body"])
                if not event["more_body"]:
                    request.body.set_complete()

            incoming.hand_to(take)
            await self._handle(request, send)

    async def _handle(self, request: Request, send: ASGISendCallable) -> None:
        """The context is left after the answer, which does not wait for that."""
        async with self.app.request_context(request) as context:
            try:
                response = await self.app.full_dispatch_request(context)
            except Exception as error:
                response = await self.app.handle_exception(error)
            await self._send_response(send, response)

    async def _send_response(self, send: ASGISendCallable, response: Any) -> None:
        body = response.response
        if not isinstance(body, DataBody):
            await super()._send_response(send, response)
            return
        head, data = encode_headers(response.headers), body.data[body.begin : body.end]
        status = response.status_code
        await send({"type": "http.response.start", "status": status, "headers": head, "trailers": False})
        await send({"type": "http.response.body", "body": data, "more_body": False})


class App(QuartTrio):
    """Quart whose handlers are coroutine functions, all of them.

    `before` and `after` are called around each request; what `before` returns or raises is the answer.
    """

    asgi_http_class = OneTask
    request_class = AppRequest

    def __init__(
        self, before: Callable[[Request], Response | None], after: Callable[[Response, Request], None]
    ) -> None:
        super().__init__("daemon", static_folder=None)
        self._before = before
        self._after = after

    def ensure_async(self, func: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        return func

    async def preprocess_request(self, request_context: RequestContext | None = None) -> Response | None:
        assert request_context is not None
        return self._before(request_context.request)

    async def process_response(self, response: Any, request_context: RequestContext | None = None) -> Any:
        assert request_context is not None
        self._after(response, request_context.request)
        return response
