"""The engine over real kernels: cancelled steps and lent bytes, bit for bit."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from runtime.engine import (
    CaptureSlot,
    Engine,
    EngineConfig,
    Finished,
    GenerateRequest,
    PrefixSnapshot,
    SamplingParams,
    SlotCaptured,
)
from runtime.errors import StepCancelled
from runtime.evaluate import LinearSequence
from runtime.model import LoadedModel
from tests.runtime.engine.fakes import Inbox
from tests.runtime.evaluation import DATA, model

GEMMA = DATA / "archs" / "gemma3.gguf"  # two cache groups, heads of 32
GREEDY = SamplingParams(temperature=0.0)


class Session:
    """An engine with an empty pool; `read` and `capture` wait for their end."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.inbox = Inbox()
        self.engine = Engine(loaded.runner, loaded.tokenizer, EngineConfig(2, 1024, 12), self.inbox.deliver)
        self.engine.start()
        self._ids = iter(range(1, 1000))

    def read(self, prompt: np.ndarray, id_slot: int) -> Finished:
        request_id = next(self._ids)
        self.engine.submit(GenerateRequest(request_id, prompt, GREEDY, n_predict=0, id_slot=id_slot))
        return self.inbox.wait(request_id, Finished)

    def capture(self, id_slot: int) -> PrefixSnapshot:
        ticket = next(self._ids)
        self.engine.post(CaptureSlot(ticket, id_slot))
        snapshot = self.inbox.wait(ticket, SlotCaptured).snapshot
        assert snapshot is not None
        return snapshot


@contextmanager
def session(loaded: LoadedModel) -> Iterator[Session]:
    it = Session(loaded)
    try:
        yield it
    finally:
        it.engine.close()


def prompt(loaded: LoadedModel, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, loaded.runner.n_vocab, n).astype(np.int32)


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q5_1"])
def test_a_branch_is_lent_with_the_bytes_it_would_have_without_the_trunk(cache_type: str) -> None:
    with model(GEMMA, n_ctx=1024, cache_type=cache_type, max_runs=2) as loaded:
        trunk = prompt(loaded, 500, 1)
        branch = np.concatenate([trunk[:300], prompt(loaded, 7, 2)])
        with session(loaded) as warm:
            warm.read(trunk, 0)
            assert warm.read(branch, 1).timings.cache_n == 300
            parted = warm.capture(1)
        with session(loaded) as cold:
            cold.read(branch, 0)
            alone = cold.capture(0)
        assert parted.tokens.tolist() == alone.tokens.tolist() == branch.tolist()
        for ours, theirs in zip(parted.blocks, alone.blocks, strict=True):
            for mine, other in zip(ours.segments, theirs.segments, strict=True):
                assert mine.tobytes() == other.tobytes()


def test_a_step_that_is_cancelled_at_any_moment_and_repeated_has_the_same_bits() -> None:
    with model(GEMMA, n_ctx=1024) as loaded:
        runner, tokens = loaded.runner, prompt(loaded, 700, 3)
        sequence = LinearSequence(runner, 1024)
        expected = [step.copy() for step in sequence.evaluate(tokens, (350,))]
        delays = np.random.default_rng(4).uniform(0.0, 0.02, 20)
        n_cancelled = 0
        for delay in delays:
            sequence = LinearSequence(runner, 1024)
            got = []
            for part in np.split(tokens, 2):
                run = sequence.run(part, "all")
                timer = threading.Timer(delay, runner.cancel)
                timer.start()
                while True:
                    try:
                        got.append(runner.step([run]).copy())
                        break
                    except StepCancelled:
                        n_cancelled += 1
                timer.join()
            assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
        assert n_cancelled
