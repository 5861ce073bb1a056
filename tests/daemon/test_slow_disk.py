"""A disk that takes its time."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import trio

from daemon.saves import SavesNotYet
from runtime.engine import EngineConfig
from runtime.memory.sizing import pool_size
from store.environment import Environment
from tests.daemon.engine_session import session
from tests.runtime.evaluation import DATA, all_logits, model

LLAMA = DATA / "archs" / "llama.gguf"
N_CTX, N_UBATCH, N_TOKENS = 4096, 256, 3800
COMMIT_S, PATIENCE_S = 0.25, 2.0
T = TypeVar("T")


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit takes a quarter of a second and holds one block."""
    write = Environment.write

    def slowly(self: Environment, call: Callable[..., T]) -> T:
        time.sleep(COMMIT_S)
        return write(self, call)

    monkeypatch.setattr(Environment, "write", slowly)
    monkeypatch.setattr("store.writer.BATCH_BYTES", 1)
    monkeypatch.setattr("store.writer.HURRIED_BYTES", 1)


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize("saved", [True, False], ids=["saved", "offered"])
def test_what_is_being_written_in_a_pool_without_a_spare_block_fails_no_request(
    tmp_path: Path, saved: bool
) -> None:
    """The next prompt needs the blocks that are lent to the writer, which takes longer than it would wait."""

    async def main() -> None:
        size = pool_size(loaded.runner.layout, 1, N_CTX, N_UBATCH, 0)
        tight = EngineConfig(1, N_CTX, size.n_blocks, restore_seconds=PATIENCE_S, pool_bytes=size.max_bytes)
        rng = np.random.default_rng(0)
        first, second = (rng.integers(0, loaded.runner.n_vocab, N_TOKENS).astype(np.int32) for _ in range(2))
        cold = all_logits(loaded, second)[-1]
        async with session(loaded, tmp_path, tight) as s, trio.open_nursery() as nursery:
            await s.ask(first, 1)
            if saved:
                nursery.start_soon(s.save, 0, "long")
                await trio.sleep(COMMIT_S)
            answer = await s.ask(second, 3)
            assert answer.cache_n == 0 and np.array_equal(answer.logits[0], cold)
        async with session(loaded, tmp_path, tight) as s:
            if saved:
                assert await s.restore(0, "long") == N_TOKENS
                assert (await s.ask(first, 1)).cache_n == N_TOKENS - 1
            else:
                assert s.store.statistics().state == "ok"
                assert not s.store.administration.verify(deep=True).problems

    with model(LLAMA, n_ctx=N_CTX, n_ubatch=N_UBATCH, max_runs=1) as loaded:
        trio.run(main)


def test_a_save_on_a_disk_that_hangs_is_given_up_and_can_be_repeated_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.memory_bridge._SAVE_SECONDS", 0.3)
    monkeypatch.setattr("daemon.memory_bridge._LOOK_SECONDS", 0.1)
    back, write = threading.Event(), Environment.write

    def hang(self: Environment, call: Callable[..., T]) -> T:
        back.wait(300)
        return write(self, call)

    async def main() -> None:
        prompt = np.arange(300, dtype=np.int32) % loaded.runner.n_vocab
        async with session(loaded, tmp_path, EngineConfig(1, N_CTX, 32)) as s:
            await s.ask(prompt, 1)
            assert s.store.flush(120)
            monkeypatch.setattr(Environment, "write", hang)
            try:
                with pytest.raises(SavesNotYet, match=r"has not answered for 0\.3 s"):
                    await s.save(0, "hung")
                assert (await s.ask(prompt, 2)).cache_n == len(prompt) - 1
            finally:
                back.set()
            await s.save(0, "saved")
            assert await s.restore(0, "saved") > 300

    with model(LLAMA, n_ctx=N_CTX, n_ubatch=N_UBATCH, max_runs=1) as loaded:
        trio.run(main)
