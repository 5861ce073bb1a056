"""How long a slot stays taken after its client left in the middle of a 512-token step of a real model."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from runtime.engine import Engine, EngineConfig, Finished, GenerateRequest, Output, SamplingParams, StopReason
from runtime.errors import StepCancelled
from runtime.model import LoadedModel, ModelOptions, load_model
from runtime.runner import Run
from tests.models import smollm2_path
from tests.runtime.engine.fakes import Inbox

pytestmark = pytest.mark.slow

N_CTX, N_STEP = 4352, 512
GREEDY = SamplingParams(temperature=0.0)


class Session:
    """An engine that tells when a step of `N_STEP` rows of `n_runs` requests begins."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.begun = threading.Semaphore(0)
        self.n_runs = 1
        self.n_given_up = 0
        self.inbox = Inbox()
        self._step = loaded.runner.step
        loaded.runner.step = self._tell  # type: ignore[method-assign]
        self.engine = Engine(loaded.runner, loaded.tokenizer, EngineConfig(2, N_CTX, 40), self.inbox.deliver)
        self.engine.start()
        self._ids = iter(range(1, 1000))
        self._random = np.random.default_rng(7)

    def _tell(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        if sum(len(run.tokens) for run in runs) == N_STEP and len(runs) == self.n_runs:
            self.begun.release()
        try:
            return self._step(runs)
        except StepCancelled:
            self.n_given_up += 1
            raise

    def forget_steps(self) -> None:
        while self.begun.acquire(blocking=False):
            pass

    def tokens(self, n: int) -> npt.NDArray[np.int32]:
        return self._random.integers(0, self.loaded.runner.n_vocab, n).astype(np.int32)

    def submit(self, prompt: npt.NDArray[np.int32], n_predict: int = 1, id_slot: int = -1) -> int:
        request_id = next(self._ids)
        self.engine.submit(GenerateRequest(request_id, prompt, GREEDY, n_predict=n_predict, id_slot=id_slot))
        return request_id

    def ids(self, request_id: int) -> list[int]:
        self.inbox.wait(request_id, Finished, timeout=300)
        outputs = [e for e in self.inbox.events if isinstance(e, Output) and e.request_id == request_id]
        return [output.id for event in outputs for output in event.tokens]

    def leave(self, request_id: int, after: float) -> float:
        """Cancel a request `after` seconds into its step; returns the seconds until it has ended."""
        assert self.begun.acquire(timeout=60)
        time.sleep(after)
        start = time.perf_counter()
        self.engine.cancel(request_id)
        finished = self.inbox.wait(request_id, Finished)
        assert finished.reason is StopReason.CANCELLED
        return time.perf_counter() - start


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    options = ModelOptions(n_ctx=N_CTX, n_ubatch=N_STEP, max_runs=2, max_outputs=2)
    loaded = load_model(smollm2_path(), options)
    it = Session(loaded)
    yield it
    it.engine.close()
    loaded.close()


@pytest.mark.parametrize("depth", [0, 3584])
def test_a_slot_is_free_soon_after_its_client_left(session: Session, depth: int) -> None:
    trunk = session.tokens(depth)
    if depth:
        session.ids(session.submit(trunk, 0))
    session.forget_steps()
    waits = []
    for delay in np.random.default_rng(depth).uniform(0.0, 0.1, 30):
        request_id = session.submit(np.concatenate([trunk, session.tokens(N_STEP)]))
        waits.append(session.leave(request_id, delay))
        assert session.inbox.wait(request_id, Finished).timings.cache_n == depth
    waits.sort()
    p50, p90, last = (f"{1e3 * waits[int(share * (len(waits) - 1))]:.1f}" for share in (0.5, 0.9, 1.0))
    print(f"\nfree after ms, {depth} tokens deep: median {p50}, p90 {p90}, max {last}")
    assert waits[len(waits) // 2] < 0.25


def test_who_shares_the_step_gets_the_answer_it_gets_alone(session: Session) -> None:
    prompt = session.tokens(600)
    alone = session.ids(session.submit(prompt, 8))
    session.forget_steps()
    session.n_runs, n_before = 2, session.n_given_up
    session.engine.submit(GenerateRequest(900, prompt, GREEDY, n_predict=8, cache_prompt=False))
    session.leave(session.submit(session.tokens(600)), 0.02)
    assert session.ids(900) == alone
    assert session.n_given_up == n_before + 1
