"""Answers from a generation: whole, or as server-sent events."""

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
import trio
from quart.wrappers.response import ResponseBody

from daemon.completion import Completion
from daemon.engine_client import Generation
from daemon.errors import ApiError, from_exception
from daemon.logs import log_failure
from daemon.workers import Workers
from runtime.engine.messages import Event, Finished, Output, Progress, Started

_encode = msgspec.json.Encoder().encode

PING = b":\n\n"
DONE = b"data: [DONE]\n\n"

_MAX_JOINED = 32
"""Events that go out in one write when the reader was slow: further ones wait for the event loop's turn."""


@dataclass(frozen=True, slots=True)
class StreamStyle:
    """How one API writes server-sent events: a final ``[DONE]``; an ``event:`` line with the object's `type`;
    errors under their own event name, without the ``error`` key around them.
    """

    ends_with_done: bool = False
    named: bool = False
    bare_errors: bool = False


class Format(Protocol):
    """One response shape. The methods return the objects of the stream's next events."""

    style: StreamStyle

    def begin(self, completion: Completion) -> list[Any]: ...

    def progress(self, completion: Completion, progress: Progress) -> list[Any]: ...

    def delta(self, completion: Completion, output: Output) -> list[Any]: ...

    def end(self, completion: Completion) -> list[Any]: ...

    def done(self, completions: list[Completion]) -> list[Any]: ...

    def whole(self, completions: list[Completion]) -> Any: ...


async def collect(generation: Generation, completions: list[Completion]) -> None:
    """Read a generation to its end into `completions`. Raises what failed it.

    When this is cancelled, closing the generation ends the engine's work.
    """
    while any(completion.finished is None for completion in completions):
        index, event = await generation.receive()
        completions[index].feed(event)


class EventStream(ResponseBody):
    """The body of a streamed answer, from a generation whose `first` event has come.

    An error after that is sent as one event and ends the stream without ``[DONE]``. After `ping_interval`
    seconds of silence (inf: never) a comment keeps proxies from closing the connection.
    """

    def __init__(
        self,
        generation: Generation,
        completions: list[Completion],
        format: Format,
        first: tuple[int, Event],
        ping_interval: int,
        workers: Workers,
    ) -> None:
        self._generation = generation
        self._completions = completions
        self._format = format
        self._first: tuple[int, Event] | None = first
        self._interval = ping_interval if ping_interval > 0 else math.inf
        self._workers = workers
        self._ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._generation.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """What has arrived, once something is to be shown. Nothing waits for more to come."""
        if self._ended:
            raise StopAsyncIteration
        parts: list[bytes] = []
        try:
            while not parts:
                await self._fill(parts)
        except Exception as error:
            self._ended = True
            log_failure(error)
            parts.append(self._failure(from_exception(error)))
        return b"".join(parts)

    async def _fill(self, parts: list[bytes]) -> None:
        arrived: tuple[int, Event] | None
        if self._first is not None:
            arrived, self._first = self._first, None
        else:
            with trio.move_on_after(self._interval) as scope:
                arrived = await self._generation.receive()
            if scope.cancelled_caught:
                parts.append(PING)
                return
        while arrived is not None:
            if data := await self._show(*arrived):
                parts.append(data)
            if self._ended:
                return
            if len(parts) >= _MAX_JOINED:
                await trio.lowlevel.checkpoint()
                return
            arrived = self._generation.receive_nowait()

    async def _show(self, index: int, event: Event) -> bytes:
        """Bytes of an event, b"" when it is not shown."""
        completion = self._completions[index]
        completion.feed(event)
        style = self._format.style
        data = event_data(await self._objects(completion, event), style.named)
        if all(each.finished is not None for each in self._completions):
            self._ended = True
            data += event_data(self._format.done(self._completions), style.named)
            if style.ends_with_done:
                data += DONE
        return data

    def _failure(self, error: ApiError) -> bytes:
        if self._format.style.bare_errors:
            return b"event: error\n" + event_data(error.body["error"])
        return event_data(error.body)

    async def _objects(self, completion: Completion, event: Event) -> list[Any]:
        if isinstance(event, Output):
            return self._format.delta(completion, event)
        if isinstance(event, Progress):
            return self._format.progress(completion, event) if completion.settings.return_progress else []
        if isinstance(event, Started):
            return self._format.begin(completion)
        if isinstance(event, Finished):
            # the last object shows the prompt, which may be long
            return await self._workers.run(self._format.end, completion)
        return []


def event_data(value: Any, named: bool = False) -> bytes:
    """One event; a list becomes one event per item. `named` events carry their `type` as the event's name."""
    if isinstance(value, list):
        return b"".join(event_data(item, named) for item in value)
    name = f"event: {value['type']}\n".encode() if named else b""
    return name + b"data: " + _encode(value) + b"\n\n"
