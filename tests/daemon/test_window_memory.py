"""Windowed layers over a real store and in a real process: what went is restored, and memory stays small."""

from pathlib import Path

import numpy as np
import pytest
import trio

from runtime.engine import CacheSource, EngineConfig
from runtime.memory.sizing import pool_size, sequence_bytes
from tests.daemon.engine_session import session
from tests.daemon.process import EmberdProcess
from tests.daemon.test_memory_use import anonymous
from tests.runtime.evaluation import DATA, all_logits, model

GEMMA = DATA / "archs" / "gemma3.gguf"
MIB = 1 << 20


@pytest.mark.parametrize("complete", [True, False])
def test_a_divergence_is_restored_as_far_as_the_store_has_rows_of_windows(
    tmp_path: Path, complete: bool
) -> None:
    n, n_ctx, n_ubatch = 700, 2048, 128

    async def main() -> None:
        layout = loaded.runner.layout
        size = pool_size(layout, 1, n_ctx, n_ubatch, 0)
        tight = EngineConfig(1, n_ctx, size.n_blocks, pool_bytes=size.max_bytes, lent_bytes=size.spare_bytes)
        tokens = np.random.default_rng(0).integers(0, loaded.runner.n_vocab, 1900).astype(np.int32)
        other = np.concatenate([tokens[:n], tokens[:150]])
        cold = all_logits(loaded, other)[-1]
        async with session(loaded, tmp_path, EngineConfig(1, n_ctx, 32) if complete else tight) as s:
            await s.ask(tokens, 1)
            assert s.store.flush(10)
        async with session(loaded, tmp_path, tight) as s:
            again = await s.ask(tokens, 3)
            assert (again.cache_n, again.source) == (1899, CacheSource.STORE)
            resumed = await s.ask(other, 3)
            assert np.array_equal(resumed.logits[0], cold)
            if complete:
                assert (resumed.cache_n, resumed.source) == (n, CacheSource.STORE)
            else:
                assert resumed.cache_n < n
                assert "rows of windowed layers" in resumed.reason

    with model(GEMMA, n_ctx=n_ctx, n_ubatch=n_ubatch, max_runs=1) as loaded:
        trio.run(main)


@pytest.mark.slow
def test_a_long_context_of_a_model_with_windows_stays_within_its_memory() -> None:
    n_ctx, n_ubatch = 40_000, 512
    flags = ("-t", "2", "-np", "1", "-c", str(n_ctx), "--ram-budget", "1M", "--store", "off")
    cache = ("-ctk", "f32", "-ctv", "f32")
    with model(GEMMA, n_ctx=256, cache_type="f32") as loaded:
        layout, n_vocab = loaded.runner.layout, loaded.runner.n_vocab
    needed = sequence_bytes(layout, n_ctx, n_ubatch)
    whole = n_ctx // 256 * layout.block_bytes
    assert whole > needed + 40 * MIB
    with EmberdProcess(GEMMA, *flags, *cache) as emberd:

        def ask(seed: int, n: int, cache_prompt: bool = True) -> dict:
            prompt = np.random.default_rng(seed).integers(0, n_vocab, n).tolist()
            body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "cache_prompt": cache_prompt}
            return emberd.client.post("/completion", json=body, timeout=600).json()

        ask(0, 3000)
        before = anonymous(emberd)
        for seed in (1, 2):
            long = ask(seed, n_ctx - 100)
            assert long["timings"]["prompt_n"] > n_ctx - 200
        assert anonymous(emberd) - before < needed + 20 * MIB
        assert ask(2, n_ctx - 100)["content"] == long["content"]
        middle = ask(2, 15_000)
        assert middle["content"] == ask(2, 15_000, cache_prompt=False)["content"]
