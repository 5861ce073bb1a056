"""Requests of a connection: the task each is handled in, and what its client still sends meanwhile."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope

from daemon.logs import logger

INCOMING_KEY = "emberd.incoming"
"""Where an ASGI scope's `state` holds the `Incoming`."""


class Incoming:
    """What a client sends of one request. Whoever asks for it has it at once, without a task that waits."""

    def __init__(self) -> None:
        self._waiting: deque[ASGIReceiveEvent] = deque()
        self._arrived = trio.Event()
        self._take: Callable[[ASGIReceiveEvent], None] | None = None
        self._whole = trio.Event()

    async def put(self, event: ASGIReceiveEvent) -> None:
        if event["type"] != "http.request" or not event["more_body"]:
            self._whole.set()
        if self._take is not None:
            self._take(event)
        else:
            self._waiting.append(event)
            self._arrived.set()

    async def receive(self) -> ASGIReceiveEvent:
        """As ASGI has it."""
        while not self._waiting:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._waiting.popleft()

    def hand_to(self, take: Callable[[ASGIReceiveEvent], None]) -> None:
        """Call `take` with what has arrived, and from now on with each event as it does."""
        while self._waiting:
            take(self._waiting.popleft())
        self._take = take

    def ignore(self) -> None:
        """Nobody wants to know any more."""
        self.hand_to(_drop)

    @property
    def is_whole(self) -> bool:
        """Whether all of the request is here, or will never be."""
        return self._whole.is_set()

    async def wait_whole(self) -> None:
        await self._whole.wait()


class RequestTasks:
    """hypercorn's `TaskGroup`, in a nursery of the connection's."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def spawn_app(
        self,
        app: AppWrapper,
        config: HypercornConfig,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        incoming = Incoming()
        scope["state"][INCOMING_KEY] = incoming
        self._nursery.start_soon(_handle, app, scope, incoming, send)
        return incoming.put

    def spawn(self, func: Callable[..., Awaitable[object]], *args: Any) -> None:
        self._nursery.start_soon(func, *args)

    async def __aenter__(self) -> "RequestTasks":
        return self

    async def __aexit__(self, *_: object) -> None:
        return


async def _handle(
    app: Any, scope: Scope, incoming: Incoming, send: Callable[[ASGISendEvent | None], Awaitable[None]]
) -> None:
    try:
        await app(scope, incoming.receive, send)
    except Exception as error:
        # one request's trouble must not end the others of its connection
        logger().error("request failed", exc_info=error)
    finally:
        await send(None)  # the application has ended


def _drop(event: ASGIReceiveEvent) -> None:
    return
