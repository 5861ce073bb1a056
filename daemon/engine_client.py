"""The trio side of the engine: requests go in, their events come back as channels.

The engine thread delivers batches of events; each batch hops to the event loop once. Several completions that
answer one HTTP request form a `Generation` and share a channel.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Protocol, Self

import trio

from daemon.errors import SHUTTING_DOWN, TOO_SLOW, ApiError
from runtime.engine.commands import SlotAnswer, SlotCaptured, SlotCommand
from runtime.engine.embedding import Embedded, EmbedRequest
from runtime.engine.messages import EngineStatistics, Event, Failed, Finished, GenerateRequest
from runtime.engine.port import LoadDone, LookupDone

Request = GenerateRequest | EmbedRequest

_LAST = Finished | Embedded | Failed
"""The events after which no other comes for their request."""


class EnginePort(Protocol):
    """What the daemon needs of `runtime.engine.Engine`."""

    def submit(self, request: Request) -> None: ...

    def cancel(self, request_id: int) -> None: ...

    def post(self, message: SlotCommand | LookupDone | LoadDone) -> None: ...

    def statistics(self) -> EngineStatistics: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


class Generation:
    """The completions of one HTTP request. Leaving the block cancels what is still running."""

    def __init__(self, client: "EngineClient", requests: Sequence[Request], deadline: float) -> None:
        self._client = client
        self._deadline = deadline
        self._index = {request.request_id: i for i, request in enumerate(requests)}
        self._send, self._receive = trio.open_memory_channel[tuple[int, Event]](math.inf)

    async def receive(self) -> tuple[int, Event]:
        """The next event and the number of its completion. Cancelling the wait loses nothing.

        A `Failed` event is raised as its error, after the other completions were cancelled, and a passed
        deadline as ApiError 504.
        """
        if (ready := self.receive_nowait()) is not None:
            return ready
        with trio.move_on_at(self._deadline) as scope:
            arrived = await self._receive.receive()
        if scope.cancelled_caught:
            self.close()
            raise TOO_SLOW
        return self._checked(arrived)

    def receive_nowait(self) -> tuple[int, Event] | None:
        """As `receive`, but None when no event has arrived."""
        if trio.current_time() >= self._deadline:
            self.close()
            raise TOO_SLOW
        try:
            return self._checked(self._receive.receive_nowait())
        except trio.WouldBlock:
            return None

    def _checked(self, arrived: tuple[int, Event]) -> tuple[int, Event]:
        if isinstance(arrived[1], Failed):
            self.close()
            raise arrived[1].error
        return arrived

    def close(self) -> None:
        """Cancel what is still running. Idempotent, never blocks."""
        for request_id in list(self._index):
            self._client.abandon(request_id)
        self._index.clear()

    def put(self, event: Event) -> None:
        index = self._index[event.request_id]
        if isinstance(event, _LAST):
            del self._index[event.request_id]
        self._send.send_nowait((index, event))

    def fail(self, error: Exception) -> None:
        """End the generation from outside: its reader gets `error`."""
        for request_id, index in list(self._index.items()):
            self._client.abandon(request_id)
            self._send.send_nowait((index, Failed(request_id, error)))
        self._index.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class EngineClient:
    """Submits requests and routes events. Built inside trio; `deliver` is for the engine thread."""

    def __init__(self, n_slots: int, queue_size: int) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._limit = n_slots + queue_size
        self._engine: EnginePort | None = None
        self._generations: dict[int, Generation] = {}
        self._asked: dict[int, trio.MemorySendChannel[SlotAnswer | Exception]] = {}
        self._next_id = 0
        self._closed: Exception | None = None
        self._idle = trio.Event()
        self._idle.set()

    def attach(self, engine: EnginePort) -> None:
        """Use `engine`, which was built with this client's `deliver`."""
        self._engine = engine

    @property
    def engine(self) -> EnginePort:
        if self._engine is None:
            raise RuntimeError("the engine is not attached yet")
        return self._engine

    @property
    def n_live(self) -> int:
        """Completions that wait or run."""
        return len(self._generations)

    def next_request_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def generate(self, requests: Sequence[Request], timeout: float = math.inf) -> Generation:
        """Submit `requests` together, to be answered within `timeout` seconds.

        Raises ApiError 503 when the queue is full or the daemon stops.
        """
        if self._closed is not None:
            raise self._closed
        if len(self._generations) + len(requests) > self._limit:
            raise ApiError(503, f"More than {self._limit} completions at a time, try again later")
        generation = Generation(self, requests, trio.current_time() + timeout)
        for request in requests:
            self._generations[request.request_id] = generation
        self._idle = trio.Event()
        for request in requests:
            self.engine.submit(request)
        return generation

    async def ask(self, make: Callable[[int], SlotCommand]) -> SlotAnswer:
        """Post the command that `make` builds of a ticket and wait for its answer.

        The engine answers when the slot is idle. When the wait is cancelled, the command is still carried
        out; a snapshot that comes too late is given back.
        """
        return await self.ask_through(_at_once, make)

    async def ask_through(
        self, post: Callable[[Callable[[], None]], None], make: Callable[[int], SlotCommand]
    ) -> SlotAnswer:
        """As `ask`, for a `make` that reads from a disk: `post` has it called on another thread.

        What it raises is raised here. Otherwise the event loop hears of nothing but the answer: who wakes it
        in between takes the interpreter from the engine, which has begun by then.
        """

        def call() -> None:
            try:
                command = make(ticket)
            except Exception as error:
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._tell, ticket, error)
            else:
                self.engine.post(command)

        with self._asking() as (ticket, answer):
            post(call)
            told = await answer.receive()
        if isinstance(told, Exception):
            raise told
        return told

    @contextmanager
    def _asking(self) -> Iterator[tuple[int, trio.MemoryReceiveChannel[SlotAnswer | Exception]]]:
        ticket = self.next_request_id()
        send, receive = trio.open_memory_channel[SlotAnswer | Exception](1)
        self._asked[ticket] = send
        try:
            yield ticket, receive
        finally:
            self._asked.pop(ticket, None)

    def _tell(self, ticket: int, error: Exception) -> None:
        asker = self._asked.pop(ticket, None)
        if asker is not None:
            asker.send_nowait(error)

    def statistics(self) -> EngineStatistics:
        return self.engine.statistics()

    def abandon(self, request_id: int) -> None:
        """Forget a request and cancel it in the engine; its slot is free at the next step."""
        if self._generations.pop(request_id, None) is not None:
            self.engine.cancel(request_id)
            self._set_idle()

    def close(self, error: Exception = SHUTTING_DOWN) -> None:
        """Refuse new requests from now on; running ones go on."""
        self._closed = self._closed or error

    def fail_all(self, error: Exception = SHUTTING_DOWN) -> None:
        """End every running request with `error` and refuse new ones."""
        self.close(error)
        for generation in set(self._generations.values()):
            generation.fail(error)

    async def wait_idle(self) -> None:
        """Return when no request waits or runs."""
        await self._idle.wait()

    def deliver(self, events: Sequence[Event]) -> None:
        """Hand over a batch of events. Called by the engine thread, returns at once."""
        try:
            self._token.run_sync_soon(self._dispatch, events)
        except trio.RunFinishedError:
            return

    def _dispatch(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, SlotAnswer):
                self._answer(event)
                continue
            generation = self._generations.get(event.request_id)
            if generation is None:
                continue
            if isinstance(event, _LAST):
                del self._generations[event.request_id]
                self._set_idle()
            generation.put(event)

    def _answer(self, answer: SlotAnswer) -> None:
        asker = self._asked.pop(answer.ticket, None)
        if asker is not None:
            asker.send_nowait(answer)
        elif isinstance(answer, SlotCaptured) and answer.snapshot is not None:
            answer.snapshot.release()

    def _set_idle(self) -> None:
        if not self._generations:
            self._idle.set()


def _at_once(call: Callable[[], None]) -> None:
    call()
