"""An engine over an open store, as the daemon has it, that tells what it computed, and the logits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import trio

from daemon.engine_client import EngineClient
from daemon.memory_bridge import ROOT, MemoryBridge
from runtime.engine import (
    CacheSource,
    Engine,
    EngineConfig,
    Finished,
    GenerateRequest,
    Output,
    SamplingParams,
)
from runtime.memory.layout import MemoryLayout
from runtime.model import LoadedModel
from runtime.runner import Run
from store import Store

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
PATIENCE_S = 300
"""A shared machine may stand still for minutes; only what never comes is to fail."""


@dataclass
class Recorder:
    """A runner that keeps the logits it gave out and counts the rows it computed."""

    inner: LoadedModel
    rows: list[npt.NDArray[np.float32]] = field(default_factory=list)
    n_read: int = 0

    @property
    def n_vocab(self) -> int:
        return self.inner.runner.n_vocab

    @property
    def n_embd(self) -> int:
        return self.inner.runner.n_embd

    @property
    def n_ubatch(self) -> int:
        return self.inner.runner.n_ubatch

    @property
    def layout(self) -> MemoryLayout:
        return self.inner.runner.layout

    def step(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        logits = self.inner.runner.step(runs)
        self.rows += [row.copy() for row in logits]
        self.n_read += sum(len(run.tokens) for run in runs)
        return logits

    def embed(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        return self.inner.runner.embed(runs)

    def cancel(self) -> None:
        self.inner.runner.cancel()

    def clear_rows(self, addresses: tuple[int, ...], first: int, end: int) -> None:
        self.inner.runner.clear_rows(addresses, first, end)

    def close(self) -> None:
        self.inner.runner.close()


@dataclass(frozen=True)
class Answer:
    """What became of a prompt: `cache_n` tokens came from `source`, `n_read` rows were computed.

    `logits` float32 [n, n_vocab] are those after the prompt and after each of `tokens` but the last.
    """

    cache_n: int
    source: CacheSource
    reason: str
    n_read: int
    tokens: list[int]
    logits: npt.NDArray[np.float32]


class Session:
    """One engine after the other over the same store; each begins with nothing in RAM."""

    def __init__(self, loaded: LoadedModel, store: Store, config: EngineConfig) -> None:
        self.store = store
        self._loaded, self._config = loaded, config
        self._recorder = Recorder(loaded)
        self._client = EngineClient(config.n_slots, 8)
        self._bridge = MemoryBridge(store, loaded, self._client, "test")
        self._bridge.port.identify()
        self._start()

    async def ask(self, prompt: npt.NDArray[np.int32], n_predict: int, id_slot: int = -1) -> Answer:
        """Must not run beside another: whose logits they are is not told."""
        recorder = self._recorder
        recorder.rows.clear()
        n_before = recorder.n_read
        done, tokens = await self.complete(prompt, n_predict, id_slot)
        timings = done.timings
        return Answer(
            cache_n=timings.cache_n,
            source=timings.cache_source,
            reason=timings.cache_reason,
            n_read=recorder.n_read - n_before,
            tokens=tokens,
            logits=np.array(recorder.rows),
        )

    async def complete(
        self, prompt: npt.NDArray[np.int32], n_predict: int, id_slot: int = -1
    ) -> tuple[Finished, list[int]]:
        """The end of the request, and the tokens of the answer."""
        number, tokens = self._client.next_request_id(), []
        request = GenerateRequest(number, prompt, GREEDY, ROOT, n_predict, id_slot=id_slot)
        with self._client.generate([request]) as generation:
            while True:
                _, event = await generation.receive()
                if isinstance(event, Output):
                    tokens += [output.id for output in event.tokens]
                if isinstance(event, Finished):
                    return event, tokens

    async def save(self, id_slot: int, name: str) -> None:
        await self._bridge.save(id_slot, name)

    async def restore(self, id_slot: int, name: str) -> int:
        """How many tokens the slot has of the save."""
        return (await self._bridge.restore(id_slot, name)).n_tokens

    async def forget(self) -> None:
        """Nothing stays in RAM, all that was offered is in the store."""
        await trio.to_thread.run_sync(self._engine.close)
        assert self.store.flush(PATIENCE_S)
        self._start()

    async def close(self) -> None:
        await trio.to_thread.run_sync(self._engine.close)
        await self._bridge.close()

    def _start(self) -> None:
        self._engine = Engine(
            self._recorder, self._loaded.tokenizer, self._config, self._client.deliver, self._bridge.port
        )
        self._client.attach(self._engine)
        self._engine.start()


@asynccontextmanager
async def session(loaded: LoadedModel, directory: Path, config: EngineConfig) -> AsyncIterator[Session]:
    made = Session(loaded, Store.open(directory, max_points=config.checkpoints.max_count), config)
    try:
        yield made
    finally:
        await made.close()
