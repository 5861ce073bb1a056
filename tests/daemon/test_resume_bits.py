"""Logits after a resume equal those of a cold run, `==`: from RAM, from the store, and after a restart."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import trio

from daemon.engine_client import EngineClient
from daemon.memory_bridge import ROOT, MemoryBridge
from runtime.engine import CacheSource, Engine, EngineConfig, Finished, GenerateRequest, SamplingParams
from runtime.memory.layout import MemoryLayout
from runtime.model import LoadedModel
from runtime.runner import Run
from store import Store
from tests.models import gemma3_path, smollm2_path
from tests.runtime.evaluation import DATA, all_logits, arch, model

N_PROMPT, N_GENERATED = 700, 3
RESUME_AT = [1, 100, 255, 256, 257, 511, 512, 600, 698, 699]

MODELS = [
    *(pytest.param(lambda n=n: DATA / "archs" / f"{n}.gguf", id=n) for n in ("llama", "gemma3")),
    pytest.param(lambda: arch("deepseek32"), id="deepseek32"),
    pytest.param(smollm2_path, id="smollm2", marks=pytest.mark.slow),
    pytest.param(gemma3_path, id="gemma3-270m", marks=pytest.mark.slow),
]


@dataclass
class Recorder:
    """A runner that keeps the logits it gave out."""

    inner: LoadedModel
    rows: list[npt.NDArray[np.float32]] = field(default_factory=list)

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
        return logits

    def embed(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        return self.inner.runner.embed(runs)

    def cancel(self) -> None:
        self.inner.runner.cancel()

    def clear_rows(self, addresses: tuple[int, ...], first: int, end: int) -> None:
        self.inner.runner.clear_rows(addresses, first, end)

    def close(self) -> None:
        self.inner.runner.close()


@dataclass
class Session:
    """An engine with an empty pool over an opened store."""

    client: EngineClient
    recorder: Recorder
    store: Store

    async def complete(self, prompt: npt.NDArray[np.int32], n_predict: int) -> Finished:
        request = GenerateRequest(
            self.client.next_request_id(), prompt, SamplingParams(temperature=0.0), ROOT, n_predict
        )
        with self.client.generate([request]) as generation:
            while True:
                _, event = await generation.receive()
                if isinstance(event, Finished):
                    return event

    async def logits(self, prompt: npt.NDArray[np.int32]) -> tuple[Finished, npt.NDArray[np.float32]]:
        """Logits of the prompt's last token and of the generated ones but the last."""
        self.recorder.rows.clear()
        done = await self.complete(prompt, N_GENERATED)
        return done, np.array(self.recorder.rows[-N_GENERATED:])


CONFIG = EngineConfig(2, 1024, 16)


@asynccontextmanager
async def session(
    loaded: LoadedModel, directory: Path, config: EngineConfig = CONFIG
) -> AsyncIterator[Session]:
    client = EngineClient(2, 8)
    store = Store.open(directory)
    bridge = MemoryBridge(store, loaded, client, "test")
    bridge.identify()
    recorder = Recorder(loaded)
    engine = Engine(recorder, loaded.tokenizer, config, client.deliver, bridge.port)
    client.attach(engine)
    engine.start()
    try:
        yield Session(client, recorder, store)
    finally:
        await trio.to_thread.run_sync(engine.close)
        await bridge.close()


@pytest.mark.parametrize("path", MODELS)
def test_a_resumed_prompt_has_the_bits_of_a_cold_one(path: Callable[[], Path], tmp_path: Path) -> None:
    async def main() -> None:
        for n in RESUME_AT:
            tokens = np.random.default_rng(n).integers(0, loaded.runner.n_vocab, N_PROMPT).astype(np.int32)
            directory = tmp_path / str(n)
            async with session(loaded, directory) as s:
                cold = all_logits(loaded, tokens)[-1]
                assert (await s.complete(tokens[:n], 0)).timings.cache_n == 0
                done, expected = await s.logits(tokens)
                assert np.array_equal(expected[0], cold)
                assert (done.timings.cache_n, done.timings.cache_source) == (n, CacheSource.RAM)
                assert s.store.flush(10)
            async with session(loaded, directory) as s:
                done, restarted = await s.logits(tokens)
                assert (done.timings.cache_n, done.timings.cache_source) == (N_PROMPT - 1, CacheSource.STORE)
                assert np.array_equal(restarted, expected)

    with model(path(), n_ctx=1024, max_runs=2) as loaded:
        trio.run(main)


@pytest.mark.parametrize("path", MODELS)
def test_any_resume_point_from_the_store_has_the_bits_of_a_cold_prompt(
    path: Callable[[], Path], tmp_path: Path
) -> None:
    """What is stored shares its first n tokens with the prompt and then goes another way."""

    async def main() -> None:
        for n in RESUME_AT[:-1]:
            rng = np.random.default_rng(n)
            tokens = rng.integers(0, loaded.runner.n_vocab, N_PROMPT).astype(np.int32)
            other = tokens.copy()
            other[n:] = (other[n:] + 1) % loaded.runner.n_vocab
            cold = all_logits(loaded, tokens)[-1]
            directory = tmp_path / str(n)
            async with session(loaded, directory) as s:
                await s.complete(other, 0)
                assert s.store.flush(10)
            async with session(loaded, directory) as s:
                done, resumed = await s.logits(tokens)
                assert (done.timings.cache_n, done.timings.cache_source) == (n, CacheSource.STORE)
                assert np.array_equal(resumed[0], cold)

    with model(path(), n_ctx=1024, max_runs=2) as loaded:
        trio.run(main)
