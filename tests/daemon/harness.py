"""A daemon in this process, on a free port of 127.0.0.1, with a real tokenizer and a scripted engine."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Self, cast

import httpx
import trio

from daemon.chat import find_delimiters
from daemon.config import Config, build_config
from daemon.loading import Prepared, Report
from daemon.logs import configure_logs
from daemon.model import ServedModel, describe
from daemon.serve import Daemon
from daemon.settings import Defaults
from daemon.templates import CHATML, ChatTemplate
from daemon.text import encode_text
from runtime.engine import EngineConfig
from runtime.gguf import open_model
from runtime.model import LoadedModel
from runtime.tokenizers import Tokenizer, load_tokenizer
from tests.daemon.fakes import FakeEngine

MODEL = Path(__file__).resolve().parents[1] / "data" / "archs" / "llama.gguf"
N_CTX = 256


class _Unloaded:
    """Stands for the weights, which the scripted engine does not need."""

    runner = None

    def close(self) -> None:
        return


def tokenizer() -> Tokenizer:
    with closing(open_model(MODEL)) as file:
        return load_tokenizer(file)


def prepare_fake(config: Config, report: Report) -> Prepared:
    with closing(open_model(MODEL)) as file:
        codec = load_tokenizer(file)
        meta = describe(file, n_params=file.n_params, size=file.n_bytes, ftype=file.file_type)
    n_ctx = config.n_ctx // config.n_parallel or N_CTX
    model = ServedModel("test-model", ("test-model",), (), str(MODEL), meta, n_ctx, codec, "")
    template = ChatTemplate(config.chat_template or CHATML)
    return Prepared(
        loaded=cast(LoadedModel, _Unloaded()),
        model=model,
        template=template,
        delimiters=find_delimiters(template, codec),
        defaults=Defaults(config, codec.n_vocab, lambda text: encode_text(text, codec, add_special=False)),
        engine=EngineConfig(config.n_parallel, n_ctx, 64),
    )


class RunningDaemon:
    """Use as a context manager. `engine` is the scripted engine, `client` talks to the daemon."""

    def __init__(
        self,
        *flags: str,
        prepare: Callable[[Config, Report], Prepared] = prepare_fake,
        wait: bool = True,
    ) -> None:
        self._flags = ("-m", "unused", "--port", "0", "--store", "off", "--log-disable", *flags)
        self._prepare = prepare
        self._wait = wait
        self._stack = ExitStack()
        self._engines: queue.Queue[FakeEngine] = queue.Queue()
        self.daemon: Daemon

    def __enter__(self) -> Self:
        config, self.warnings = build_config(self._flags, {})
        configure_logs(config)
        started: queue.Queue[trio.lowlevel.TrioToken] = queue.Queue()

        async def main() -> None:
            self.daemon = Daemon(
                config, prepare=self._prepare, make_engine=self._make_engine, watch_signals=False
            )
            started.put(trio.lowlevel.current_trio_token())
            await self.daemon.run()

        self.thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
        self.thread.start()
        self._token = started.get(timeout=60)
        self._stack.callback(self.stop)
        until(lambda: bool(self.daemon.addresses) or not self.thread.is_alive())
        self.url = self.daemon.addresses[0]
        self.client = self._stack.enter_context(httpx.Client(base_url=self.url, timeout=60))
        if self._wait:
            self.engine = self._engines.get(timeout=60)
            until(lambda: self.client.get("/v1/health").status_code == 200)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _make_engine(
        self, runner: Any, tokenizer: Any, config: EngineConfig, deliver: Any, port: Any
    ) -> FakeEngine:
        engine = FakeEngine(config, deliver)
        self._engines.put(engine)
        return engine

    def loop_seconds(self) -> float:
        """Processor time that the event loop's thread has used."""
        return trio.from_thread.run_sync(time.thread_time, trio_token=self._token)

    def request_stop(self) -> None:
        """What a signal does."""
        if self.thread.is_alive():
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self.daemon.stop)

    def stop(self) -> None:
        """Stop as a signal would, and wait for the end."""
        self.request_stop()
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def error(self, path: str, body: Any, status: int) -> str:
        """The message of the error that `body` must be answered with."""
        response = self.post(path, body)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert error["code"] == status
        return str(error["message"])


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def events(text: str) -> list[str]:
    """The data of server-sent events."""
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
