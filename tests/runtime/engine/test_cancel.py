"""Cancelling while the model computes: who leaves stops the step, and nobody else notices."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from runtime.engine import Engine, EngineConfig, Event, Finished, GenerateRequest, Output, Started, StopReason
from runtime.engine.commands import Cancel
from runtime.memory.layout import BLOCK
from runtime.runner import Run
from tests.runtime.engine.fakes import LETTERS, FakeRunner, Inbox
from tests.runtime.engine.harness import GREEDY, Bench, expected, tokens


class Paused:
    """An engine whose steps wait inside the model, each until it is let go."""

    def __init__(self, n_slots: int = 2) -> None:
        self.runner = FakeRunner()
        self.inbox = Inbox()
        self.engine = Engine(self.runner, LETTERS, EngineConfig(n_slots, 2048, 32), self.inbox.deliver)
        self.inside = threading.Semaphore(0)
        self._gate = threading.Semaphore(0)
        self._free = False
        self.runner.before_step = self._wait
        self.engine.start()

    def _wait(self, runs: object) -> None:
        self.inside.release()
        if not self._free:
            assert self._gate.acquire(timeout=60)

    def let_go(self) -> None:
        self._gate.release()

    def run_freely(self) -> None:
        self._free = True
        self.let_go()

    def step_begins(self) -> None:
        assert self.inside.acquire(timeout=60)

    def submit(self, request_id: int, prompt: np.ndarray, n_predict: int = 5) -> None:
        self.engine.submit(GenerateRequest(request_id, prompt, GREEDY, n_predict=n_predict))

    def reason(self, request_id: int) -> StopReason:
        return self.inbox.wait(request_id, Finished).reason

    def ids(self, request_id: int) -> list[int]:
        self.inbox.wait(request_id, Finished)
        outputs = [e for e in self.inbox.events if isinstance(e, Output) and e.request_id == request_id]
        return [o.id for e in outputs for o in e.tokens]


@pytest.fixture
def paused() -> Iterator[Paused]:
    it = Paused()
    yield it
    it.run_freely()
    it.engine.close()


def test_a_step_that_reads_the_prompt_of_who_leaves_is_given_up(paused: Paused) -> None:
    paused.submit(1, tokens(900))
    paused.step_begins()
    paused.engine.cancel(1)
    paused.let_go()
    assert paused.reason(1) is StopReason.CANCELLED
    assert (paused.runner.n_given_up, paused.runner.steps) == (1, [])


def test_whoever_shares_the_step_answers_as_if_alone(paused: Paused) -> None:
    paused.submit(1, tokens(10), 8)
    paused.step_begins()
    paused.submit(2, tokens(900, seed=1))
    paused.let_go()
    paused.step_begins()
    paused.engine.cancel(2)
    paused.run_freely()
    assert paused.ids(1) == expected(tokens(10), 8)
    assert paused.reason(2) is StopReason.CANCELLED
    assert paused.runner.n_given_up == 1
    paused.submit(3, tokens(900, seed=1))
    assert paused.ids(3) == expected(tokens(900, seed=1), 5)


def test_a_step_that_only_decodes_is_finished(paused: Paused) -> None:
    paused.submit(1, tokens(10), 100)
    paused.step_begins()
    paused.let_go()
    paused.step_begins()
    paused.engine.cancel(1)
    paused.run_freely()
    assert paused.reason(1) is StopReason.CANCELLED
    assert (paused.runner.n_given_up, len(paused.runner.steps)) == (0, 2)


def test_who_decodes_beside_the_prompt_of_another_does_not_stop_its_step(paused: Paused) -> None:
    paused.submit(1, tokens(10), 100)
    paused.step_begins()
    paused.submit(2, tokens(900, seed=1))
    paused.let_go()
    paused.step_begins()
    paused.engine.cancel(1)
    paused.run_freely()
    assert paused.reason(1) is StopReason.CANCELLED
    assert paused.ids(2) == expected(tokens(900, seed=1), 5)
    assert paused.runner.n_given_up == 0


def test_a_step_whose_request_left_before_it_began_is_not_begun() -> None:
    runner, inbox = FakeRunner(), Inbox()

    def deliver(events: list[Event]) -> None:
        inbox.deliver(events)
        if any(isinstance(event, Started) and event.request_id == 1 for event in events):
            engine.cancel(1)

    engine = Engine(runner, LETTERS, EngineConfig(2, 2048, 32), deliver)
    engine.start()
    engine.submit(GenerateRequest(1, tokens(900), GREEDY, n_predict=5))
    assert inbox.wait(1, Finished).reason is StopReason.CANCELLED
    assert (runner.n_given_up, runner.steps) == (0, [])
    engine.close()


def test_a_cancel_that_meets_the_end_of_its_step_costs_the_next_one_only_a_repetition() -> None:
    """The flag is raised after the step polled it for the last time, so the next step finds it."""
    runner, inbox = FakeRunner(), Inbox()
    real = runner.step

    def step(runs: list) -> np.ndarray:
        logits = real(runs)
        engine.cancel(1)
        return logits

    runner.step = step
    engine = Engine(runner, LETTERS, EngineConfig(2, 2048, 32), inbox.deliver)
    engine.start()
    engine.submit(GenerateRequest(1, tokens(900), GREEDY, n_predict=5))
    assert inbox.wait(1, Finished).reason is StopReason.CANCELLED
    assert (runner.n_given_up, len(runner.steps)) == (0, 1)
    engine.submit(GenerateRequest(2, tokens(900), GREEDY, n_predict=5))
    finished = inbox.wait(2, Finished)
    assert (finished.reason, finished.timings.cache_n) == (StopReason.LIMIT, 512)
    assert runner.n_given_up == 1
    outputs = [e for e in inbox.events if isinstance(e, Output) and e.request_id == 2]
    assert [o.id for e in outputs for o in e.tokens] == expected(tokens(900), 5)
    engine.close()


def test_whoever_comes_and_goes_all_the_time_cannot_stop_the_others() -> None:
    runner, inbox = FakeRunner(n_ubatch=64), Inbox()
    engine = Engine(runner, LETTERS, EngineConfig(2, 2048, 32), inbox.deliver)
    intruders = iter(range(10, 10_000))
    live = [next(intruders)]
    given_up: list[int] = []

    def intrude(runs: list[Run]) -> None:
        # Once the other has its answer nobody is left whom an intruder could stop.
        if inbox.has(1, Finished):
            return
        given_up.append(runner.n_given_up)
        engine.cancel(live[-1])
        live.append(next(intruders))
        engine.submit(GenerateRequest(live[-1], tokens(500, seed=live[-1]), GREEDY, n_predict=1))

    runner.before_step = intrude
    engine.submit(GenerateRequest(live[0], tokens(500, seed=9), GREEDY, n_predict=1))
    engine.submit(GenerateRequest(1, tokens(600), GREEDY, n_predict=3))
    engine.start()
    try:
        assert inbox.wait(1, Finished).reason is StopReason.LIMIT
    finally:
        engine.close()
    # Each step that was finished had at most two before it that were not.
    assert 0 < given_up[-1] <= 2 * len(given_up) / 3 + 2
    outputs = [e for e in inbox.events if isinstance(e, Output) and e.request_id == 1]
    assert [o.id for e in outputs for o in e.tokens] == expected(tokens(600), 3)


def is_closing(engine: Engine) -> bool:
    """Under its lock: by then the step that goes on was told, too."""
    with engine._signal:
        return engine._closing


def test_closing_gives_up_the_step_that_reads_a_prompt(paused: Paused) -> None:
    paused.submit(1, tokens(900))
    paused.step_begins()
    closing = threading.Thread(target=paused.engine.close)
    closing.start()
    while not is_closing(paused.engine):
        time.sleep(0.001)
    paused.let_go()
    closing.join(60)
    assert paused.reason(1) is StopReason.CANCELLED
    assert (paused.runner.n_given_up, paused.runner.steps) == (1, [])


def test_steps_given_up_at_any_time_change_no_answer() -> None:
    chance = np.random.default_rng(5)
    bench = Bench(n_slots=3, n_ubatch=96)
    bench.runner.before_step = lambda runs: bench.runner.cancel() if chance.random() < 0.4 else None
    prompts = [tokens(n, seed=n) for n in (20, 700, 300, 513)]
    ids = [bench.submit(prompt, 12) for prompt in prompts]
    bench.run()
    assert [bench.result(i).ids for i in ids] == [expected(prompt, 12) for prompt in prompts]
    assert bench.runner.n_given_up > 10
    bench.check_references()


def test_a_slot_whose_step_was_given_up_keeps_only_the_blocks_it_needs() -> None:
    bench = Bench(n_ubatch=512)
    bench.runner.before_step = lambda runs: bench.runner.cancel() if runs[0].start == 512 else None
    request_id = bench.submit(tokens(1500))
    bench.turn()
    bench.turn()
    assert len(bench.core.slots[0].sequence.blocks) == 4
    bench.post(Cancel(request_id))
    assert bench.result(request_id).finished.n_cached_total == 512
    assert bench.core.pool.n_used == len(bench.core.slots[0].sequence.blocks) == 512 // BLOCK
    bench.runner.before_step = lambda runs: None
    assert bench.ask(tokens(1500), 5).ids == expected(tokens(1500), 5)
    bench.check_references()
