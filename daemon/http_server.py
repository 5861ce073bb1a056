"""Connections: hypercorn's HTTP over trio streams, with every time-out chosen here.

Hypercorn's own `serve` shields its writes, so that a client which stops reading could hold a connection,
and the shutdown, for ever. Here each write has a deadline (`daemon.connection`), and closing the server
closes what is still open.
"""

import logging
import resource
import socket
import ssl

import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.worker_context import WorkerContext

from daemon.app import ASGIApp
from daemon.config import Config
from daemon.connection import BoundedStream, Connection, Stream
from daemon.logs import logger

KEEP_ALIVE_SECONDS = 75
MAX_HEADER_BYTES = 64 * 2**10
MAX_CONNECTIONS = 1024
_PATIENCE_SECONDS = 0.05


class HttpServer:
    """Serves `app` on bound sockets until it is closed."""

    def __init__(self, app: ASGIApp, config: Config, sockets: list[socket.socket]) -> None:
        self._app = app
        self._timeout = config.timeout
        self._sockets = sockets
        self._tls = _tls_context(config)
        self._context = WorkerContext(None)
        self._streams: set[BoundedStream] = set()
        self._accepting = trio.CancelScope()
        self._closed = trio.Event()
        self._idle: dict[Connection, None] = {}
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = trio.CapacityLimiter(max(1, min(MAX_CONNECTIONS, files // 2)))
        self._config = HypercornConfig()
        self._config.keep_alive_timeout = KEEP_ALIVE_SECONDS
        self._config.keep_alive_max_requests = 2**31
        self._config.h11_max_incomplete_size = MAX_HEADER_BYTES
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
        for connection in list(self._idle):
            connection.end()

    async def wait_closed(self) -> None:
        """Return when `run` has, which needs `stop_accepting`."""
        await self._closed.wait()

    async def close_connections(self) -> None:
        """Close what is still open, whatever it is doing."""
        for stream in list(self._streams):
            await stream.aclose_forcefully()

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
                await connection.stream.aclose_forcefully()

    async def _serve(self, stream: trio.SocketStream) -> None:
        transport: Stream = stream
        if self._tls is not None:
            transport = trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)
        bounded = BoundedStream(transport, stream.socket, self._timeout)
        self._streams.add(bounded)
        try:
            await Connection(self._idle, self._app, self._config, self._context, bounded).run()
        except* Exception as group:
            # one connection's trouble must not end the others
            logger().error("connection failed", exc_info=group)
        finally:
            self._streams.discard(bounded)


def _tls_context(config: Config) -> ssl.SSLContext | None:
    """Raises OSError, as ssl.SSLError too, when key or certificate cannot be used."""
    if not config.ssl_cert_file:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(config.ssl_cert_file, config.ssl_key_file)
    return context
