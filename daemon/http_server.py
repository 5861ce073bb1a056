"""Connections: hypercorn's HTTP over trio streams, with every time-out chosen here.

Hypercorn's own `serve` shields its writes, so that a client which stops reading could hold a connection,
and the shutdown, for ever. Here each write has a deadline, and closing the server closes what is still
open.
"""

import logging
import resource
import socket
import ssl
from typing import Any

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, Updated
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import wrap_app

from daemon.app import ASGIApp
from daemon.config import Config
from daemon.logs import logger

KEEP_ALIVE_SECONDS = 75
MAX_HEADER_BYTES = 64 * 2**10
MAX_CONNECTIONS = 1024
_PATIENCE_SECONDS = 0.05

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class HttpServer:
    """Serves `app` on bound sockets until it is closed."""

    def __init__(self, app: ASGIApp, config: Config, sockets: list[socket.socket]) -> None:
        wrapped: Any = app
        self._app: AppWrapper = wrap_app(wrapped, 0, "asgi")
        self._timeout = config.timeout
        self._sockets = sockets
        self._tls = _tls_context(config)
        self._context = WorkerContext(None)
        self._streams: set[_BoundedStream] = set()
        self._accepting = trio.CancelScope()
        self._closed = trio.Event()
        self._idle: dict[_Connection, None] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = trio.CapacityLimiter(max(1, min(MAX_CONNECTIONS, files // 2)))
        self._config = HypercornConfig()
        self._config.keep_alive_timeout = KEEP_ALIVE_SECONDS
        self._config.keep_alive_max_requests = 2**31
        self._config.h11_max_incomplete_size = MAX_HEADER_BYTES
        self._config.read_timeout = None
        self._config.include_server_header = False
        self._config.accesslog = None
        self._config.errorlog = logging.getLogger("hypercorn.error")
        self._config.alpn_protocols = ["http/1.1"]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept connections until `stop_accepting`, then return when the last one is closed."""
        async with trio.open_nursery() as nursery:
            listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in self._sockets]
            with self._accepting:
                task_status.started()
                await trio.serve_listeners(self._serve_connection, listeners, handler_nursery=nursery)
        self._closed.set()

    async def stop_accepting(self) -> None:
        """Close the listeners. Idle connections end now, others after their answer."""
        self._accepting.cancel()
        await self._context.terminated.set()

    async def wait_closed(self) -> None:
        """Return when `run` has, which needs `stop_accepting`."""
        await self._closed.wait()

    async def close_connections(self) -> None:
        """Close what is still open, whatever it is doing."""
        for stream in list(self._streams):
            await trio.aclose_forcefully(stream)

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        await self._enter()
        try:
            await self._serve(stream)
        finally:
            self._limit.release()

    async def _enter(self) -> None:
        """Wait for a place. Who is asking nothing gives theirs up: they can connect again."""
        while True:
            with trio.move_on_after(_PATIENCE_SECONDS):
                await self._limit.acquire()
                return
            for connection in list(self._idle)[:1]:
                del self._idle[connection]
                await trio.aclose_forcefully(connection.stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        transport: Stream = stream
        if self._tls is not None:
            transport = trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)
        bounded = _BoundedStream(transport, stream.socket, self._timeout)
        self._streams.add(bounded)
        try:
            any_stream: Any = bounded
            state = ConnectionState({})
            await _Connection(self._idle, self._app, self._config, self._context, state, any_stream)
        except* Exception as group:
            # one connection's trouble must not end the others
            logger().error("connection failed", exc_info=group)
        finally:
            self._streams.discard(bounded)


class _Connection(TCPServer):
    """Ends when the client closes it. Hypercorn's own would wait for the keep-alive time-out first, so that
    clients with a connection per request could fill the server with connections nobody has any more. And its
    reader, which holds a further request back until the one before is answered, would never learn of the end.

    While it answers no request it stands in `idle`, behind those that have been idle for longer.
    """

    def __init__(self, idle: "dict[_Connection, None]", *args: Any) -> None:
        super().__init__(*args)
        self._idle = idle
        self._reading = trio.CancelScope()

    async def run(self) -> None:
        self._idle[self] = None
        try:
            await super().run()
        finally:
            self._idle.pop(self, None)

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            self._idle.pop(self, None)
            if event.idle:
                self._idle[self] = None
        await super().protocol_send(event)
        if self.stream.is_broken:
            self._reading.cancel()

    async def _read_data(self) -> None:
        with self._reading:
            await super()._read_data()
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def _close(self) -> None:
        await super()._close()
        self._reading.cancel()


class _BoundedStream(trio.abc.HalfCloseableStream):
    """A stream whose writes fail after `timeout` seconds without progress of the peer; then `is_broken`."""

    def __init__(self, stream: Stream, sock: trio.socket.SocketType, timeout: float) -> None:
        self.socket = sock
        self.is_broken = False
        self._stream = stream
        self._timeout = timeout

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


def _tls_context(config: Config) -> ssl.SSLContext | None:
    """Raises OSError, as ssl.SSLError too, when key or certificate cannot be used."""
    if not config.ssl_cert_file:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(config.ssl_cert_file, config.ssl_key_file)
    return context
