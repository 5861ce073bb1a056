"""An answer on its way from quart to hypercorn, in as few writes as it can be made of."""

from collections.abc import Iterable

import trio
from hypercorn.typing import (
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
)

from daemon.connection import STATE_KEY, Connection
from daemon.exchange import Exchange
from daemon.incoming import INCOMING_KEY, Incoming

_LATE_BODY_SECONDS = 2.0


class Answer:
    """Stands between quart and hypercorn for one exchange: `send` is for quart.

    Two things keep connections usable for the next request. An answer that does not depend on the body waits
    for the body, because hypercorn closes a connection whose request is still arriving. And a disconnect
    means nothing to the last write, which makes hypercorn report one: it would cancel who is writing.
    Not so over HTTP/2 (a client may upgrade to it), where a write may wait for the peer's window for ever.

    The head of an answer of known length is written with its body. The head of a stream goes out at once.
    """

    def __init__(self, scope: HTTPScope, send: ASGISendCallable, exchange: Exchange) -> None:
        self._send = send
        self._exchange = exchange
        self._incoming: Incoming = scope["state"][INCOMING_KEY]
        self._is_http1 = scope["http_version"].startswith("1")
        connection = scope["state"].get(STATE_KEY) if self._is_http1 else None
        self._connection: Connection | None = connection
        self._head: HTTPResponseStartEvent | None = None

    async def send(self, event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start":
            await self._begin(event)
        elif event["type"] == "http.response.body":
            await self._go_on(event)
        else:
            await self._send(event)

    async def _begin(self, event: HTTPResponseStartEvent) -> None:
        self._exchange.status = event["status"]
        if not self._incoming.is_whole:
            with trio.move_on_after(_LATE_BODY_SECONDS):
                await self._incoming.wait_whole()
        if _has_length(event["headers"]):
            self._head = event
        else:
            await self._send(event)

    async def _go_on(self, event: HTTPResponseBodyEvent) -> None:
        if self._is_http1 and not event["more_body"]:
            self._incoming.ignore()
        head, self._head = self._head, None
        if head is not None:
            if self._connection is not None:
                self._connection.hold()
            await self._send(head)
        await self._send(event)


def _has_length(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-length" for name, _ in headers)
