"""The engine on its thread, with real time."""

import logging
import mmap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from runtime.engine import (
    CaptureSlot,
    Engine,
    EngineConfig,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    MemoryPort,
    Output,
    SlotCaptured,
    Started,
    StopReason,
)
from runtime.engine.resume import CheckpointPolicy
from tests.idle import assert_it_rests
from tests.runtime.engine.fakes import LETTERS, FakeRunner, Inbox
from tests.runtime.engine.harness import GREEDY, expected, tokens
from tests.runtime.engine.ports import DictStore
from tests.runtime.engine.tailed import LAYOUTS, TailedRunner

CONFIG = EngineConfig(n_slots=2, n_ctx=1024, n_blocks=24)


class Running:
    def __init__(
        self,
        port: MemoryPort | None = None,
        config: EngineConfig = CONFIG,
        runner: FakeRunner | None = None,
    ) -> None:
        self.runner = runner or FakeRunner()
        self.inbox = Inbox()
        self.engine = Engine(self.runner, LETTERS, config, self.inbox.deliver, port)
        self.engine.start()

    def submit(self, request_id: int, prompt: np.ndarray, n_predict: int = 5) -> None:
        self.engine.submit(GenerateRequest(request_id, prompt, GREEDY, n_predict=n_predict))

    def ids(self, request_id: int) -> list[int]:
        outputs = [e for e in self.inbox.events if isinstance(e, Output) and e.request_id == request_id]
        return [o.id for e in outputs for o in e.tokens]


@pytest.fixture
def running() -> Iterator[Running]:
    it = Running()
    yield it
    it.engine.close()


def test_requests_from_many_threads_are_all_answered(running: Running) -> None:
    def ask(i: int) -> None:
        running.submit(i, tokens(40 + i, seed=i))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for i, thread in enumerate(threads):
        thread.join()
        running.inbox.wait(i, Finished)
        assert running.ids(i) == expected(tokens(40 + i, seed=i), 5)


def test_events_of_a_step_come_in_one_batch(running: Running) -> None:
    gate = threading.Event()
    running.runner.before_step = lambda runs: gate.wait(60) and None
    for i in range(3):
        running.submit(i, tokens(20, seed=i), 1000)
    gate.set()
    for i in range(2):
        running.inbox.wait(i, Finished)
    full = [b for b in running.inbox.batches if len({e.request_id for e in b if isinstance(e, Output)}) == 2]
    assert len(full) > 1


def test_an_idle_engine_uses_no_cpu(running: Running) -> None:
    running.submit(1, tokens(10))
    running.inbox.wait(1, Finished)
    assert_it_rests()


@pytest.mark.parametrize(("max_count", "n_missing"), [(32, 0), (0, 2)])
def test_memory_for_the_next_point_is_ready_when_the_engine_rests(max_count: int, n_missing: int) -> None:
    """That is a state and a copy of rings, each of a page here; where no points are left, none."""
    config = replace(CONFIG, checkpoints=CheckpointPolicy(max_count=max_count))
    running = Running(config=config, runner=TailedRunner(LAYOUTS["hybrid"]))
    running.submit(1, tokens(100))
    running.inbox.wait(1, Finished)
    assert_it_rests()
    running.engine.close()
    tails = running.engine._core.pool.tails
    assert tails is not None
    assert not (max_count and tails.prepare())
    (kept,) = {tails._states._kept, tails._captures._kept}
    n_before = kept.n_resident
    held = [tails.state(), tails.captured_rings(100)]
    assert kept.n_resident == n_before + n_missing * mmap.PAGESIZE
    del held


def test_a_cancelled_request_ends_within_one_step(running: Running) -> None:
    running.submit(1, tokens(10), 100_000)
    running.inbox.wait(1, Output)
    n_steps = len(running.runner.steps)
    running.engine.cancel(1)
    cancelled_at = len(running.runner.steps)
    finished = running.inbox.wait(1, Finished)
    assert finished.reason in (StopReason.CANCELLED, StopReason.LIMIT)
    assert n_steps <= len(running.runner.steps) <= cancelled_at + 2


def test_statistics_do_not_wait_for_a_step(running: Running) -> None:
    inside, gate, over = threading.Event(), threading.Event(), threading.Event()

    def block(runs: object) -> None:
        inside.set()
        gate.wait(20)
        over.set()

    running.runner.before_step = block
    running.submit(1, tokens(10))
    assert inside.wait(60)
    assert running.engine.statistics().requests_processing == 1
    assert not over.is_set()
    gate.set()


def test_a_model_that_raises_fails_its_requests_and_the_engine_goes_on(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(runs: object) -> None:
        running.runner.before_step = lambda runs: None
        raise RuntimeError("broken")

    running.runner.before_step = fail
    running.submit(1, tokens(10))
    error = running.inbox.wait(1, Failed).error
    assert str(error) == "the model could not compute a step: broken"
    running.submit(2, tokens(10))
    running.inbox.wait(2, Finished)
    assert running.ids(2) == expected(tokens(10), 5)


def test_a_defect_of_the_engine_fails_what_lives_and_it_goes_on(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = running.engine._core
    real = core.progress
    monkeypatch.setattr(core, "progress", lambda slot, task: 1 // 0)
    running.submit(1, tokens(10))
    assert "internal error" in str(running.inbox.wait(1, Failed).error)
    monkeypatch.setattr(core, "progress", real)
    running.submit(2, tokens(10))
    running.inbox.wait(2, Finished)
    assert any(record.levelno == logging.ERROR for record in caplog.records)


def test_a_receiver_that_raises_does_not_stop_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()

    def deliver(events: list[Event]) -> None:
        inbox.deliver(events)
        if any(isinstance(e, Started) for e in events):
            raise RuntimeError("the loop is gone")

    engine = Engine(FakeRunner(), LETTERS, CONFIG, deliver)
    engine.start()
    for i in range(2):
        engine.submit(GenerateRequest(i, tokens(10), GREEDY, n_predict=3))
        inbox.wait(i, Finished)
    engine.close()


def test_closing_cancels_offers_and_ends_the_thread() -> None:
    before = set(threading.enumerate())
    store = DictStore()
    running = Running(store)
    store.post = running.engine.post
    running.submit(1, tokens(300), 100_000)
    while not store.answer():
        time.sleep(0.001)
    running.inbox.wait(1, Output)
    running.submit(2, tokens(300))
    running.engine.close()
    running.engine.close()
    assert running.inbox.wait(1, Finished).reason in (StopReason.CANCELLED, StopReason.LIMIT)
    running.inbox.wait(2, Finished)
    assert store.seen[-1][0] == "release"
    assert not any(thread.name == "engine" for thread in set(threading.enumerate()) - before)
    running.submit(3, tokens(10))


def test_an_engine_that_never_started_can_be_closed() -> None:
    Engine(FakeRunner(), LETTERS, CONFIG, lambda events: None).close()


def test_a_store_that_never_answers_is_given_up_in_time() -> None:
    running = Running(DictStore(), EngineConfig(2, 1024, 24, restore_seconds=0.05))
    running.submit(1, tokens(300))
    assert "did not answer in time" in running.inbox.wait(1, Finished).timings.cache_reason
    assert running.ids(1) == expected(tokens(300), 5)
    running.engine.close()


def test_a_lease_may_be_returned_from_another_thread_while_the_engine_sleeps(running: Running) -> None:
    running.submit(1, tokens(300))
    slot = running.inbox.wait(1, Finished).id_slot
    running.engine.post(CaptureSlot(2, slot))
    snapshot = running.inbox.wait(2, SlotCaptured).snapshot
    assert snapshot is not None
    thread = threading.Thread(target=snapshot.release)
    thread.start()
    thread.join()
    assert_it_rests()
    running.submit(3, tokens(300))
    running.inbox.wait(3, Finished)
    assert running.ids(3) == expected(tokens(300), 5)
