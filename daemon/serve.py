"""The daemon's life: listen, load, serve, drain. One nursery owns every task."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from daemon.allocator import keep_freed_memory
from daemon.app import create_app
from daemon.config import Config
from daemon.engine_client import EngineClient, EnginePort
from daemon.errors import SHUTTING_DOWN
from daemon.flags import UsageError
from daemon.http_server import HttpServer
from daemon.listeners import bind_all, urls
from daemon.loading import Prepared, Report, prepare
from daemon.logs import configure_logs, logger
from daemon.memory import open_memory
from daemon.progress import LoadProgress
from daemon.saves import Memory
from daemon.service import Ready, Service
from daemon.systemd import Notifier
from runtime.engine import Engine
from runtime.errors import RuntimeFault
from store import StoreBusy
from tools.errors import FetchError, reason

_FLUSH_SECONDS = 10.0
_FAREWELL_SECONDS = 1.0
_ONE_WISH_SECONDS = 1.0
"""Signals this close together are one wish to stop: a terminal and a supervisor may both send it."""

Prepare = Callable[[Config, Report], Prepared]
MakeEngine = Callable[..., EnginePort]


class StartFailed(Exception):
    """The daemon cannot serve; the message is the one line to show, `status` how the process ends."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def run(config: Config, warnings: tuple[str, ...]) -> int:
    """Serve until a signal asks to stop. The exit status: 0 after a graceful stop.

    Raises StartFailed when the model, the port or a file cannot be used.
    """
    try:
        configure_logs(config)
    except OSError as error:
        raise StartFailed(f"--log-file: {reason(error)}") from None
    keep_freed_memory()
    for warning in warnings:
        logger().warning(warning)
    daemon = Daemon(config)
    trio.run(daemon.run)
    if daemon.failure is not None:
        raise daemon.failure
    return 0


@dataclass(slots=True)
class Daemon:
    """One run of the daemon. `failure` is set when it could not start, `addresses` once it listens.

    `watch_signals` needs the main thread; without it only `stop` ends the run.
    """

    config: Config
    prepare: Prepare = prepare
    make_engine: MakeEngine = Engine
    watch_signals: bool = True
    notifier: Notifier = field(default_factory=Notifier)
    failure: StartFailed | None = None
    addresses: list[str] = field(default_factory=list)
    _stop: trio.Event = field(default_factory=trio.Event)

    async def run(self) -> None:
        """Returns after a graceful stop, or at once with `failure` set."""
        try:
            sockets = bind_all(self.config)
            service = Service(self.config)
            server = HttpServer(create_app(service), self.config, sockets)
        except (OSError, UsageError) as error:
            self.failure = StartFailed(reason(error))
            return
        self.addresses = urls(sockets, tls=bool(self.config.ssl_cert_file))
        async with trio.open_nursery() as nursery:
            if self.watch_signals:
                nursery.start_soon(self._watch_signals)
            await nursery.start(server.run)
            logger().info("listening", urls=self.addresses)
            await self._serve(service, server)
            self.notifier.send(STOPPING="1", STATUS="stopped")
            nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """Begin a graceful stop. For the event loop's thread; idempotent."""
        self._stop.set()

    async def _serve(self, service: Service, server: HttpServer) -> None:
        prepared = await self._load()
        running = await self._start(prepared) if prepared is not None else None
        if running is None:
            await server.stop_accepting()
            await server.close_connections()
            return
        service.set_ready(running.ready)
        self.notifier.send(READY="1", STATUS=f"serving {running.ready.model.name}")
        sys.stdout.write(f"emberd is ready: {' '.join(self.addresses)}\n")
        sys.stdout.flush()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._feed_watchdog, running.ready.client)
            nursery.start_soon(running.memory.run)
            await self._stop.wait()
            nursery.cancel_scope.cancel()
        await self._shut_down(service, server, running.ready.client)
        await running.close()

    async def _start(self, prepared: Prepared) -> "_Running | None":
        """Memory and engine of a loaded model, None when another daemon owns the store."""
        client = EngineClient(prepared.engine.n_slots, self.config.queue_size)
        try:
            memory = await open_memory(self.config, prepared.loaded, client, prepared.model.name)
        except StoreBusy as error:
            advice = "stop it, choose another store with --store-path, or none with --store off"
            self.failure = StartFailed(f"{error}: {advice}", os.EX_TEMPFAIL)
            return None
        engine = self.make_engine(
            prepared.loaded.runner, prepared.model.tokenizer, prepared.engine, client.deliver, memory.port
        )
        client.attach(engine)
        engine.start()
        ready = Ready(
            model=prepared.model,
            client=client,
            template=prepared.template,
            delimiters=prepared.delimiters,
            defaults=prepared.defaults,
            saves=memory,
            root=memory.root,
            readout=prepared.readout,
        )
        return _Running(prepared, engine, memory, ready)

    async def _load(self) -> Prepared | None:
        """The model, None when loading failed or a signal came first."""
        loaded: list[Prepared] = []
        async with trio.open_nursery() as nursery:

            async def load() -> None:
                with LoadProgress(self.notifier, quiet=self.config.log_disable) as progress:
                    try:
                        result = await trio.to_thread.run_sync(
                            self.prepare, self.config, progress, abandon_on_cancel=True
                        )
                        loaded.append(result)
                    except (RuntimeFault, FetchError, OSError, UsageError) as error:
                        self.failure = StartFailed(reason(error))
                nursery.cancel_scope.cancel()

            nursery.start_soon(load)
            await self._stop.wait()
            nursery.cancel_scope.cancel()
        return loaded[0] if loaded else None

    async def _shut_down(self, service: Service, server: HttpServer, client: EngineClient) -> None:
        """Let running answers finish within the deadline, then end them properly."""
        self.notifier.send(STOPPING="1", STATUS="finishing answers")
        service.stopping = True
        client.close()
        await server.stop_accepting()
        if client.n_live:
            logger().info("stopping", answers=client.n_live, seconds=self.config.drain_timeout)
        with trio.move_on_after(self.config.drain_timeout):
            await client.wait_idle()
        client.fail_all(SHUTTING_DOWN)
        with trio.move_on_after(_FAREWELL_SECONDS):
            await server.wait_closed()
        await server.close_connections()

    async def _watch_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            first = trio.current_time()
            async for number in signals:
                if self._stop.is_set():
                    if trio.current_time() - first > _ONE_WISH_SECONDS:
                        os._exit(1)
                    continue
                first = trio.current_time()
                logger().info("stopping", signal=signal.Signals(number).name)
                self._stop.set()

    async def _feed_watchdog(self, client: EngineClient) -> None:
        """Tell the service manager that we live, as long as requests make progress."""
        if not self.notifier.watchdog_seconds:
            return
        last_steps = -1
        while True:
            statistics = client.statistics()
            if not statistics.requests_processing or statistics.steps_total != last_steps:
                self.notifier.send(WATCHDOG="1")
            last_steps = statistics.steps_total
            await trio.sleep(self.notifier.watchdog_seconds / 3)


@dataclass(frozen=True, slots=True)
class _Running:
    """What has to be closed, in order, when the daemon stops."""

    prepared: Prepared
    engine: EnginePort
    memory: Memory
    ready: Ready

    async def close(self) -> None:
        await trio.to_thread.run_sync(self.engine.close)
        with trio.move_on_after(_FLUSH_SECONDS) as scope:
            await self.memory.close()
        if scope.cancelled_caught:
            logger().warning("the store did not finish writing in time", seconds=_FLUSH_SECONDS)
        await trio.to_thread.run_sync(self.prepared.loaded.close)
