"""An answer on its way from quart to hypercorn, in as few writes as it can be made of."""

from collections.abc import Iterable

import trio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
)

from daemon.connection import STATE_KEY, Connection
from daemon.exchange import Exchange

_LATE_BODY_SECONDS = 2.0


class Answer:
    """Stands between quart and hypercorn for one exchange: `receive` and `send` are for quart.

    Two things keep connections usable for the next request. An answer that does not depend on the body waits
    for the body, because hypercorn closes a connection whose request is still arriving. And the last write is
    shielded: it makes hypercorn report a disconnect, upon which quart cancels the very task that is writing.
    Not so over HTTP/2 (a client may upgrade to it), where a write may wait for the peer's window for ever.

    The head of an answer of known length is written with its body, whose last byte ends it: quart's own end,
    which would come later and empty, is not waited for. The head of a stream goes out at once.
    """

    def __init__(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable, exchange: Exchange
    ) -> None:
        self._receive = receive
        self._send = send
        self._exchange = exchange
        self._received = trio.Event()
        self._is_http1 = scope["http_version"].startswith("1")
        connection = scope["state"].get(STATE_KEY) if self._is_http1 else None
        self._connection: Connection | None = connection
        self._head: HTTPResponseStartEvent | None = None
        self._missing: int | None = None
        self._ended = False

    async def receive(self) -> ASGIReceiveEvent:
        event = await self._receive()
        if event["type"] != "http.request" or not event["more_body"]:
            self._received.set()
        return event

    async def send(self, event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            await self._begin(event)
        elif event["type"] == "http.response.body":
            await self._go_on(event)
        else:
            await self._send(event)

    async def _begin(self, event: HTTPResponseStartEvent) -> None:
        self._exchange.status = event["status"]
        if not self._received.is_set():
            with trio.move_on_after(_LATE_BODY_SECONDS):
                await self._received.wait()
        self._missing = _content_length(event["headers"])
        if self._missing is None:
            await self._send(event)
        else:
            self._head = event

    async def _go_on(self, event: HTTPResponseBodyEvent) -> None:
        if self._ended:
            return
        self._ended = not event["more_body"]
        if self._missing is not None:
            self._missing -= len(event["body"])
            if self._missing <= 0 and not self._ended:
                self._ended = True
                event = {**event, "more_body": False}
        if self._ended and self._is_http1:
            with trio.CancelScope(shield=True):
                await self._write(event)
        else:
            await self._write(event)

    async def _write(self, event: HTTPResponseBodyEvent) -> None:
        head, self._head = self._head, None
        if self._connection is None:
            if head is not None:
                await self._send(head)
            await self._send(event)
            return
        self._connection.hold()
        try:
            if head is not None:
                await self._send(head)
            await self._send(event)
        finally:
            await self._connection.release()


def _content_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    for name, value in headers:
        if name.lower() == b"content-length":
            return int(value)
    return None
