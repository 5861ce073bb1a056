"""Embeddings through the engine: batches of whole prompts, answers in order, clear refusals."""

from collections.abc import Iterator

import numpy as np
import pytest

from runtime.engine import Embedded, EmbedRequest, Engine, EngineConfig, Failed, GenerateRequest
from runtime.engine.messages import Event
from runtime.errors import (
    BatchExceeded,
    ContextExceeded,
    InvalidRequest,
    QueueFull,
    StepCancelled,
    StepFailed,
)
from runtime.pooling import Pooling
from runtime.readout import Readout
from runtime.runner import Run
from tests.runtime.engine.fakes import LETTERS, N_VOCAB, FakeRunner, Inbox, read_rows
from tests.runtime.engine.harness import tokens

CONFIG = EngineConfig(n_slots=3, n_ctx=48, n_blocks=4, max_queue=4)
MEAN = Readout(Pooling.MEAN, 2, Pooling.MEAN)
NONE = Readout(Pooling.NONE, 2, Pooling.NONE)


class FakeEmbedder(FakeRunner):
    """Its rows are (token, first token of its run); it writes memory as the other fake does."""

    n_embd = 2

    def __init__(self) -> None:
        super().__init__(n_ubatch=64)
        self.failures: list[Exception] = []

    def embed(self, runs: list[Run]) -> np.ndarray:
        self.before_step(runs)
        if self.failures:
            raise self.failures.pop()
        self.steps.append([(run.start, len(run.tokens)) for run in runs])
        assert sum(len(run.tokens) for run in runs) <= self.n_ubatch
        for run in runs:
            self._write(run)
        memories = [read_rows(run.tables[0], len(run.tokens), 8) for run in runs]
        assert len(set(memories)) == len({run.tokens.tobytes() for run in runs}), "runs share blocks"
        return np.concatenate([[(t, run.tokens[0]) for t in run.tokens] for run in runs]).astype(np.float32)


class Running:
    def __init__(self) -> None:
        self.runner = FakeEmbedder()
        self.inbox = Inbox()
        self.engine = Engine(self.runner, LETTERS, CONFIG, self.inbox.deliver)

    def answer(self, *prompts: np.ndarray, readout: Readout = MEAN) -> Event:
        """Of one request, sent to the running engine."""
        self.engine.submit(EmbedRequest(1, prompts, readout))
        self.engine.start()
        return self.inbox.wait(1, Embedded, Failed)


@pytest.fixture
def running() -> Iterator[Running]:
    it = Running()
    yield it
    it.engine.close()


def test_every_prompt_is_pooled_by_itself_and_answers_keep_their_order(running: Running) -> None:
    prompts = [tokens(n, seed=n) for n in (5, 40, 1, 48, 17)]
    event = running.answer(*prompts)
    assert isinstance(event, Embedded)
    assert event.n_tokens == sum(map(len, prompts))
    for prompt, vectors in zip(prompts, event.vectors, strict=True):
        assert np.allclose(vectors, [[prompt.mean(), prompt[0]]])
    assert running.runner.steps == [[(0, 5), (0, 40), (0, 1)], [(0, 48)], [(0, 17)]]


def test_without_pooling_every_token_has_a_vector(running: Running) -> None:
    prompt = tokens(9)
    event = running.answer(prompt, readout=NONE)
    assert isinstance(event, Embedded)
    assert np.array_equal(event.vectors[0], [(t, prompt[0]) for t in prompt])


def test_requests_share_steps_and_end_as_soon_as_they_are_complete(running: Running) -> None:
    for i in (1, 2):
        running.engine.submit(EmbedRequest(i, (tokens(20, i), tokens(20, i + 9)), MEAN))
    running.engine.start()
    running.inbox.wait(2, Embedded)
    assert [e.request_id for e in running.inbox.events] == [1, 2]
    assert [len(step) for step in running.runner.steps] == [3, 1]


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ((), InvalidRequest, "nothing to embed"),
        ((tokens(3), tokens(0)), InvalidRequest, "without tokens"),
        ((np.array([N_VOCAB], np.int32),), InvalidRequest, "outside"),
        (
            (tokens(65),),
            BatchExceeded,
            r"input \(65 tokens\) is too large to process. increase the physical batch size "
            r"\(current batch size: 64\)",
        ),
        ((tokens(49),), ContextExceeded, r"49 tokens\) exceeds the available context size \(48"),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    running: Running, prompts: tuple[np.ndarray, ...], error: type[Exception], message: str
) -> None:
    event = running.answer(*prompts)
    assert isinstance(event, Failed)
    with pytest.raises(error, match=message):
        raise event.error


def test_an_embedding_model_does_not_generate_and_others_do_not_embed(running: Running) -> None:
    running.engine.submit(GenerateRequest(1, tokens(3)))
    running.engine.start()
    failed = running.inbox.wait(1, Failed)
    assert isinstance(failed.error, InvalidRequest)
    assert "cannot generate" in str(failed.error)

    inbox = Inbox()
    engine = Engine(FakeRunner(), LETTERS, CONFIG, inbox.deliver)
    engine.submit(EmbedRequest(1, (tokens(3),), MEAN))
    engine.start()
    assert "not loaded for embeddings" in str(inbox.wait(1, Failed).error)
    engine.close()


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(running: Running) -> None:
    running.runner.failures = [OSError("no")]
    event = running.answer(tokens(3))
    assert isinstance(event, Failed)
    assert isinstance(event.error, StepFailed)
    running.engine.submit(EmbedRequest(2, (tokens(3),), MEAN))
    running.inbox.wait(2, Embedded)


def test_a_step_cancelled_by_mistake_is_computed_again(running: Running) -> None:
    running.runner.failures = [StepCancelled("stale")]
    assert isinstance(running.answer(tokens(3)), Embedded)


def test_vectors_that_are_not_numbers_are_not_given_out(running: Running) -> None:
    running.runner.embed = lambda runs: np.full((3, 2), np.nan, np.float32)  # type: ignore[method-assign]
    event = running.answer(tokens(3))
    assert isinstance(event, Failed)
    assert isinstance(event.error, StepFailed)


def test_cancelled_waiting_and_late_requests_are_told_so(running: Running) -> None:
    """Cancelled before it began, beyond the queue, and left when the engine closes."""
    for i in range(1, 7):
        running.engine.submit(EmbedRequest(i, (tokens(3),), MEAN))
    running.engine.cancel(2)
    running.runner.before_step = lambda runs: running.engine.cancel(99)
    running.engine.start()
    running.inbox.wait(4, Embedded)
    errors = {e.request_id: e.error for e in running.inbox.events if isinstance(e, Failed)}
    assert {i: type(error) for i, error in errors.items()} == {2: StepCancelled, 5: QueueFull, 6: QueueFull}
