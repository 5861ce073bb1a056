"""One connection: hypercorn's, with fewer writes and tasks, and an end when the client ends it."""

import os
from typing import Any

import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer

STATE_KEY = "emberd.connection"
"""Where an ASGI scope's `state` holds the `Connection`."""

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Connection(TCPServer):
    """Ends when the client closes it. Hypercorn's own would wait for the keep-alive time-out first, so that
    clients with a connection per request could fill the server with connections nobody has any more. And its
    reader, which holds a further request back until the one before is answered, would never learn of the end.

    While it answers no request it stands in `idle`, behind those that have been idle for longer.
    """

    def __init__(self, idle: "dict[Connection, None]", *args: Any) -> None:
        super().__init__(*args)
        any_task: Any = _IdleLimit(self)
        self.idle_task = any_task
        self.state[STATE_KEY] = self
        self._idle = idle
        self._reading = trio.CancelScope()
        self._held: list[bytes] | None = None

    async def run(self) -> None:
        self._idle[self] = None
        try:
            await super().run()
        finally:
            self._idle.pop(self, None)

    def end(self) -> None:
        """Read no more, which closes a connection that is idle."""
        self._reading.cancel()

    def limit_idleness(self) -> None:
        """End after the keep-alive time-out, or now when the server stops."""
        if self.context.terminated.is_set():
            self.end()
        else:
            self._reading.deadline = trio.current_time() + self.config.keep_alive_timeout

    def allow_idleness(self) -> None:
        self._reading.deadline = float("inf")

    def hold(self) -> None:
        """Collect what is written until `release`, to write it at once."""
        self._held = []

    async def release(self) -> None:
        try:
            await self._flush()
        finally:
            self._held = None

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            if self._held is None:
                await self._write(event.data)
            else:
                self._held.append(event.data)
            return
        await self._flush()
        if isinstance(event, Updated):
            self._idle.pop(self, None)
            if event.idle:
                self._idle[self] = None
        await super().protocol_send(event)

    async def _flush(self) -> None:
        while self._held:
            data = b"".join(self._held)
            self._held.clear()
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        """Write without a wait what the socket takes. Who has ever more to write waits for it elsewhere."""
        if data and not self.send_lock.locked():
            any_stream: Any = self.stream
            data = any_stream.send_now(data)
        if data:
            await super().protocol_send(RawData(data=data))
        if self.stream.is_broken:
            self._reading.cancel()

    async def _read_data(self) -> None:
        with self._reading:
            await super()._read_data()
        await self.protocol.handle(Closed())

    async def _close(self) -> None:
        await super()._close()
        self._reading.cancel()


class _IdleLimit:
    """Takes the place of hypercorn's task per idle time: the reader's deadline is moved instead."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def restart(self, task_group: object, action: object) -> None:
        self._connection.limit_idleness()

    async def stop(self) -> None:
        self._connection.allow_idleness()


class BoundedStream(trio.abc.HalfCloseableStream):
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

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            with trio.fail_after(self._timeout):
                await self._stream.send_all(data)
        except trio.TooSlowError:
            self.is_broken = True
            raise trio.BrokenResourceError("the peer stopped reading") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.is_broken = True
            raise

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.SocketStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
