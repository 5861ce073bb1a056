"""One connection: hypercorn's protocols over a trio stream, in few writes and tasks."""

import os
from contextlib import suppress
from typing import Any

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from daemon.incoming import RequestTasks

STATE_KEY = "emberd.connection"
"""Where an ASGI scope's `state` holds the `Connection`."""

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
_MAX_READ = 2**16


class BoundedStream:
    """A stream whose writes fail after `timeout` seconds without progress of the peer; then `is_broken`."""

    def __init__(self, stream: Stream, sock: trio.socket.SocketType, timeout: float) -> None:
        self.socket = sock
        self.is_broken = False
        self._stream = stream
        self._timeout = timeout

    def send_now(self, data: bytes) -> bytes:
        """Write what the socket takes at once, nothing with TLS. Returns the rest, for `send_all`.

        That one meets and reports the errors, too.
        """
        if not isinstance(self._stream, trio.SocketStream):
            return data
        try:
            return data[os.write(self.socket.fileno(), data) :]
        except OSError:
            return data

    async def send_all(self, data: bytes) -> None:
        try:
            with trio.fail_after(self._timeout):
                await self._stream.send_all(data)
        except trio.TooSlowError:
            self.is_broken = True
            raise trio.BrokenResourceError("the peer stopped reading") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.is_broken = True
            raise

    async def receive_some(self, max_bytes: int) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.SocketStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def aclose_forcefully(self) -> None:
        await trio.aclose_forcefully(self._stream)


class Connection:
    """Ends when the client closes it, when it breaks, and after the keep-alive time-out.

    Hypercorn's own connection would wait for that time-out first, so that clients with a connection per
    request could fill the server with connections nobody has any more. And its reader, which holds a further
    request back until the one before is answered, would never learn of the end.

    While it answers no request it stands in `idle`, behind those that have been idle for longer.
    """

    def __init__(
        self,
        idle: "dict[Connection, None]",
        app: Any,
        config: HypercornConfig,
        context: WorkerContext,
        stream: BoundedStream,
    ) -> None:
        self.stream = stream
        self._app = app
        self._config = config
        self._context = context
        self._idle = idle
        self._sending = trio.Lock()
        self._reading = trio.CancelScope()
        self._held: bytes | None = None

    async def run(self) -> None:
        self._idle[self] = None
        try:
            await self._talk()
        except OSError:
            # it was gone before anything was said
            return
        finally:
            self._idle.pop(self, None)
            await self._close()

    def end(self) -> None:
        """Read no more, which closes a connection that is idle."""
        self._reading.cancel()

    def hold(self) -> None:
        """Write what comes next together with what comes after it, or with the end of the answer."""
        self._held = b""

    async def _talk(self) -> None:
        sock = self.stream.socket
        client = parse_socket_addr(sock.family, sock.getpeername())
        server = parse_socket_addr(sock.family, sock.getsockname())
        async with trio.open_nursery() as nursery:
            self._protocol = ProtocolWrapper(
                self._app,
                self._config,
                self._context,
                RequestTasks(nursery),
                ConnectionState({STATE_KEY: self}),
                False,
                client,
                server,
                self._send,
                "http/1.1",
            )
            await self._protocol.initiate()
            self._limit_idleness()
            with self._reading:
                await self._read()
            await self._protocol.handle(Closed())

    async def _read(self) -> None:
        while True:
            try:
                data = await self.stream.receive_some(_MAX_READ)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                return
            await self._protocol.handle(RawData(data))
            if not data:
                return

    def _limit_idleness(self) -> None:
        """End after the keep-alive time-out, or now when the server stops."""
        if self._context.terminated.is_set():
            self.end()
        else:
            self._reading.deadline = trio.current_time() + self._config.keep_alive_timeout

    async def _send(self, event: Event) -> None:
        """What the protocol has for the peer, or about itself."""
        if isinstance(event, RawData):
            await self._join(event.data)
            return
        held, self._held = self._held, None
        if held:
            await self._write(held)
        if isinstance(event, Closed):
            await self._close()
            await self._protocol.handle(Closed())
        elif isinstance(event, Updated):
            self._note(event.idle)

    def _note(self, is_idle: bool) -> None:
        self._idle.pop(self, None)
        if is_idle:
            self._idle[self] = None
            self._limit_idleness()
        else:
            self._reading.deadline = float("inf")

    async def _join(self, data: bytes) -> None:
        if self._held == b"":
            self._held = data
            return
        if self._held:
            data, self._held = self._held + data, None
        await self._write(data)

    async def _write(self, data: bytes) -> None:
        """Write without a wait what the socket takes. Who has ever more to write waits for it elsewhere."""
        if data and not self._sending.locked():
            data = self.stream.send_now(data)
        if data:
            await self._write_all(data)
        if self.stream.is_broken:
            self.end()

    async def _write_all(self, data: bytes) -> None:
        """Whole, even when whoever writes is cancelled: what comes after half an event is no HTTP."""
        with trio.CancelScope(shield=True):
            async with self._sending:
                try:
                    await self.stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._protocol.handle(Closed())

    async def _close(self) -> None:
        # the peer may be gone, or not read
        with suppress(trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError):
            await self.stream.send_eof()
        await self.stream.aclose()
        self.end()
