"""Real models with windows under so little memory that rows go: the logits are those of reading in one go."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from runtime.memory.layout import BLOCK
from runtime.memory.sizing import sequence_bytes
from runtime.model import LoadedModel
from runtime.runner import Run
from tests.runtime.engine.harness import Bench, join
from tests.runtime.engine.ports import DictStore
from tests.runtime.evaluation import arch, last_logits, model

N_CTX = 2048
N_UBATCH = 512
N_PREDICT = 3


class Watched:
    """A model's runner that keeps the logits it gives."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._runner = loaded.runner
        self.n_vocab, self.n_ubatch, self.layout = self._runner.n_vocab, N_UBATCH, self._runner.layout
        self.clear_rows = self._runner.clear_rows
        self.logits: dict[bytes, npt.NDArray[np.float32]] = {}
        self.bench: Bench | None = None

    def step(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        logits = self._runner.step(runs)
        rows = iter(logits)
        for run in runs:
            if run.logits == "last":
                (slot,) = [s for s in self.bench.core.slots if s.sequence.tables is run.tables]
                seen = join(slot.sequence.tokens, run.tokens)
                self.logits[seen.tobytes()] = next(rows).copy()
        return logits


@pytest.fixture(params=["gemma3", "gpt-oss"], scope="module")
def loaded(request: pytest.FixtureRequest) -> Iterator[LoadedModel]:
    with model(arch(request.param), n_ctx=N_CTX, n_ubatch=N_UBATCH, max_runs=2) as it:
        yield it


def bench_of(loaded: LoadedModel, spare: int, store: DictStore | None) -> tuple[Bench, Watched]:
    """Two slots, and memory for `spare` bytes more than they need."""
    runner = Watched(loaded)
    needed = 2 * sequence_bytes(runner.layout, N_CTX, N_UBATCH)
    bench = Bench(
        n_ctx=N_CTX,
        pool_bytes=needed + spare,
        lent_bytes=spare,
        n_ubatch=N_UBATCH,
        port=store,
        runner=runner,
    )
    runner.bench = bench
    if store is not None:
        store.post = bench.post
    return bench, runner


def play(bench: Bench, rounds: list[list[np.ndarray]]) -> set[str]:
    """Ask the prompts of each round at once; returns where prefixes came from."""
    sources = set()
    for prompts in rounds:
        ids = [bench.submit(prompt, N_PREDICT) for prompt in prompts]
        bench.run()
        while bench.port is not None and bench.port.answer():
            bench.run()
        if bench.port is not None:
            bench.port.write()
        sources |= {bench.result(i).finished.timings.cache_source for i in ids}
    return sources


@pytest.mark.parametrize("with_store", [False, True])
def test_logits_do_not_tell_how_much_memory_there_was(loaded: LoadedModel, with_store: bool) -> None:
    rng = np.random.default_rng(0)
    trunk, twig, other, more = (
        rng.integers(0, loaded.runner.n_vocab, n).astype(np.int32) for n in (1900, 150, 1700, 60)
    )
    n = 3 * BLOCK + 70
    rounds = [
        [trunk, other],
        [join(trunk[:n], twig)],  # a divergence in the middle
        [join(trunk[:n], twig, more), join(trunk[:n], more)],  # two that go on from one prefix
        [join(other, more), trunk[: 5 * BLOCK]],
        [join(trunk, more)],
    ]
    store, again = (DictStore(), DictStore()) if with_store else (None, None)
    roomy, plenty = bench_of(loaded, 1 << 30, store)
    play(roomy, rounds)
    if store is not None and again is not None:
        again.records = store.records.copy()
    tight, given = bench_of(loaded, 0, again)
    assert with_store == ("store" in play(tight, rounds))
    assert given.logits.keys() == plenty.logits.keys()
    assert all(np.array_equal(given.logits[key], plenty.logits[key]) for key in given.logits)
    for prompts in rounds:
        for prompt in prompts:
            assert np.array_equal(given.logits[prompt.tobytes()], last_logits(loaded, prompt)[-1])
    assert any(tight.core.pool.lacking(node.block) for node in tight.core.index.nodes())
    assert not any(roomy.core.pool.lacking(node.block) for node in roomy.core.index.nodes())


def test_checked_mode_agrees_that_all_that_is_seen_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERD_CHECKED", "1")
    with model(arch("gemma3"), n_ctx=N_CTX, n_ubatch=N_UBATCH, max_runs=2) as loaded:
        bench, _ = bench_of(loaded, 0, None)
        tokens = np.random.default_rng(1).integers(0, loaded.runner.n_vocab, 1500).astype(np.int32)
        for prompt in (tokens, tokens[::-1].copy(), join(tokens[:700], tokens[:300])):
            assert len(bench.ask(prompt, N_PREDICT).ids) == N_PREDICT
