"""The life of a request, from the queue to its last event."""

import numpy as np
import pytest

from runtime.engine import (
    Failed,
    Finished,
    GenerateRequest,
    Output,
    Progress,
    SamplingParams,
    Started,
    StopReason,
)
from runtime.engine.commands import Cancel
from runtime.errors import ContextExceeded, InvalidRequest, QueueFull, StepFailed
from tests.runtime.engine.fakes import EOG, N_VOCAB, FakeTokenizer
from tests.runtime.engine.harness import Bench, expected, tokens


def test_events_come_in_order_and_end_once() -> None:
    bench = Bench()
    request_id = bench.submit(tokens(50), 5)
    bench.run()
    kinds = [type(e) for e in bench.events if e.request_id == request_id]
    assert kinds == [Started, *[Output] * 5, Finished]
    finished = bench.result(request_id).finished
    assert (finished.reason, finished.truncated, finished.n_prompt) == (StopReason.LIMIT, False, 50)
    assert finished.n_cached_total == 54
    assert (finished.timings.prompt_n, finished.timings.predicted_n) == (50, 5)


def test_text_is_that_of_the_tokens() -> None:
    bench = Bench()
    result = bench.ask(tokens(50), 30)
    assert result.text == "".join(chr(97 + i % 26) for i in result.ids)


def test_an_end_token_ends_the_answer_without_text() -> None:
    bench = Bench()
    bench.runner.before_step = lambda runs: bench.runner.bias.update(
        {EOG: 100.0} if runs[0].start >= 53 else {}
    )
    result = bench.ask(tokens(50), 30)
    assert result.finished.reason is StopReason.EOS
    assert result.ids[-1] == EOG
    assert len(result.text) == len(result.ids) - 1 == 4
    assert (
        bench.ask(tokens(50), 8, sampling=SamplingParams(temperature=0, ignore_eos=True)).ids.count(EOG) == 0
    )


def test_a_stop_string_ends_the_answer() -> None:
    bench = Bench()
    text = bench.ask(tokens(50), 30).text
    result = bench.ask(tokens(50), 30, stop=(text[10:13],))
    assert result.text == text[: text.index(text[10:13])]
    assert result.finished.reason is StopReason.WORD
    assert result.finished.stopping_word == text[10:13]


def test_no_prediction_only_fills_the_cache() -> None:
    bench = Bench()
    result = bench.ask(tokens(300), 0)
    assert (result.text, result.ids, result.finished.reason) == ("", [], StopReason.LIMIT)
    assert result.finished.n_cached_total == 300
    assert result.finished.timings.predicted_n == 0
    assert bench.ask(tokens(300), 3).n_cached == 299


def test_a_full_context_ends_the_answer_as_truncated() -> None:
    bench = Bench(n_ctx=256)
    result = bench.ask(tokens(200), -1)
    assert (result.finished.reason, result.finished.truncated) == (StopReason.LIMIT, True)
    assert result.ids == expected(tokens(200), 56)
    assert bench.ask(tokens(255), -1).ids == expected(tokens(255), 1)


@pytest.mark.parametrize("n", [512, 513, 5000])
def test_a_prompt_that_does_not_fit_is_refused(n: int) -> None:
    bench = Bench(n_ctx=512)
    error = bench.ask(tokens(n), 5).error
    assert isinstance(error, ContextExceeded)
    assert (error.n_prompt, error.n_ctx) == (n, 512)
    assert bench.ask(tokens(511), 5).error is None


def test_an_empty_prompt_finishes_at_once() -> None:
    bench = Bench()
    result = bench.ask([], 5)
    assert (result.text, result.finished.reason, result.finished.id_slot) == ("", StopReason.NONE, -1)


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**31 - 1])
def test_a_token_beyond_the_vocabulary_is_refused(token: int) -> None:
    error = Bench().ask([1, token, 2], 5).error
    assert isinstance(error, InvalidRequest)
    assert str(error) == f"the prompt has a token id outside of 0..{N_VOCAB - 1}"


def test_a_slot_that_does_not_exist_is_refused() -> None:
    assert str(Bench(n_slots=2).ask([1], 5, id_slot=2).error) == "there is no slot 2, slots are numbered 0..1"


@pytest.mark.parametrize("stop", [("x",) * 257, ("x" * 65_537,), ("x" * 300,) * 250])
def test_stop_strings_without_measure_are_refused(stop: tuple[str, ...]) -> None:
    assert str(Bench().ask([1], 5, stop=stop).error).startswith("at most 256 stop strings")


@pytest.mark.parametrize(
    "prompt", [np.zeros(4, np.int64), np.zeros((2, 2), np.int32), np.zeros(8, np.int32)[::2]]
)
def test_a_prompt_that_is_no_row_of_int32_is_refused(prompt: np.ndarray) -> None:
    bench = Bench()
    bench.post(GenerateRequest(1, prompt))
    assert "contiguous int32" in str(bench.result(1).error)


def test_absurd_sampling_fields_trouble_nobody_else() -> None:
    bench = Bench(n_slots=2)
    good = bench.submit(tokens(30), 20)
    bench.turn()
    absurd = [
        SamplingParams(logit_bias=((2**80, 1.0), (-(2**80), 1.0), (3, 1e300))),
        SamplingParams(logit_bias=((3, float("nan")),)),
        SamplingParams(seed=2**90, temperature=float("nan")),
        SamplingParams(seed=1, repeat_penalty=0.0, top_k=2**70, min_keep=-5),
        SamplingParams(seed=1, repeat_last_n=2**70, presence_penalty=float("inf")),
        SamplingParams(seed=1, temperature=float("inf"), top_p=float("nan"), min_p=float("nan")),
    ]
    ids = [bench.submit(tokens(20, seed=i), 4, sampling=p) for i, p in enumerate(absurd)]
    bench.run()
    assert bench.result(good).ids == expected(tokens(30), 20)
    for request_id in ids:
        result = bench.result(request_id)
        assert result.finished is not None or isinstance(result.error, StepFailed | InvalidRequest)


def test_each_output_carries_the_timings_so_far() -> None:
    bench = Bench()
    bench.runner.before_step = lambda runs: setattr(bench, "now", bench.now + 0.5)
    result = bench.ask(tokens(30), 3)
    seen = [(o.timings.prompt_n, o.timings.prompt_ms, o.timings.predicted_n, o.timings.predicted_ms)
            for o in result.outputs]  # fmt: skip
    assert seen == [(30, 500.0, 1, 0.0), (30, 500.0, 2, 500.0), (30, 500.0, 3, 1000.0)]


def test_a_full_queue_refuses_and_the_waiting_are_served_in_order() -> None:
    bench = Bench(n_slots=1, max_queue=2)
    ids = [bench.submit(tokens(20, seed=0), 5)]
    bench.turn()
    ids += [bench.submit(tokens(20, seed=i), 5) for i in range(1, 5)]
    bench.run()
    assert [isinstance(bench.result(i).error, QueueFull) for i in ids] == [False, False, False, True, True]
    started = [e.request_id for e in bench.events if isinstance(e, Started)]
    assert started == ids[:3]
    assert bench.core.statistics().requests_deferred == 0


def test_a_request_for_a_busy_slot_waits_and_does_not_hold_up_others() -> None:
    bench = Bench(n_slots=2)
    first = bench.submit(tokens(20), 30, id_slot=0)
    bench.turn()
    picky = bench.submit(tokens(20, seed=1), 3, id_slot=0)
    other = bench.submit(tokens(20, seed=2), 3)
    bench.run()
    slots = [bench.result(i).finished.id_slot for i in (first, picky, other)]
    assert slots == [0, 0, 1]
    ends = [e.request_id for e in bench.events if isinstance(e, Finished)]
    assert ends == [other, first, picky]


@pytest.mark.parametrize("turns", [0, 1, 2, 7])
def test_a_cancelled_request_ends_before_the_next_step_and_its_rows_stay(turns: int) -> None:
    bench = Bench(n_slots=2, n_ubatch=128)
    other = bench.submit(tokens(40, seed=1), 30)
    request_id = bench.submit(tokens(300), 100)
    for _ in range(turns):
        bench.turn()
    n_known = bench.core.slots[1].sequence.n_tokens
    bench.post(Cancel(request_id))
    if turns:
        assert bench.core.slots[1].idle
    bench.run()
    assert bench.result(request_id).finished.reason is StopReason.CANCELLED
    assert bench.result(other).ids == expected(tokens(40, seed=1), 30)
    again = bench.ask(tokens(300), 5)
    assert again.n_cached == min(n_known, 299)
    assert again.ids == expected(tokens(300), 5)
    bench.check_references()


def test_cancelling_what_is_unknown_or_over_is_ignored() -> None:
    bench = Bench()
    bench.post(Cancel(99))
    request_id = bench.submit(tokens(10), 2)
    bench.run()
    bench.post(Cancel(request_id))
    bench.run()
    assert bench.result(request_id).finished.reason is StopReason.LIMIT


def test_a_waiting_request_can_be_cancelled() -> None:
    bench = Bench(n_slots=1)
    bench.submit(tokens(10), 5)
    bench.turn()
    waiting = bench.submit(tokens(10), 5)
    bench.post(Cancel(waiting))
    bench.run()
    assert bench.result(waiting).finished.reason is StopReason.CANCELLED
    assert bench.result(waiting).started is None


def test_progress_begins_with_the_cache_and_ends_with_the_whole() -> None:
    bench = Bench(n_ubatch=100)
    bench.ask(tokens(150), 1)
    request_id = bench.submit(tokens(400), 1, return_progress=True)
    bench.run()
    progress = [e for e in bench.events if isinstance(e, Progress)]
    assert {e.request_id for e in progress} == {request_id}
    assert [e.processed for e in progress] == [150, 250, 350, 400]
    assert {(e.total, e.cache) for e in progress} == {(400, 150)}


def test_a_failed_step_ends_its_requests_only_and_leaves_nothing_wrong_behind() -> None:
    bench = Bench(n_slots=2)
    calls = []

    def fail_third(runs: object) -> None:
        calls.append(runs)
        if len(calls) == 3:
            raise RuntimeError("out of luck")

    bench.runner.before_step = fail_third
    ids = [bench.submit(tokens(300, seed=i), 5) for i in range(3)]
    bench.run()
    errors = [bench.result(i).error for i in ids]
    assert [type(e) for e in errors] == [StepFailed, StepFailed, type(None)]
    assert bench.result(ids[2]).ids == expected(tokens(300, seed=2), 5)
    assert bench.ask(tokens(300, seed=0), 5).ids == expected(tokens(300, seed=0), 5)
    bench.check_references()


def test_logits_that_are_not_numbers_fail_their_request_only() -> None:
    bench = Bench(n_slots=2)
    good = bench.submit(tokens(30, seed=1), 10)
    bad = bench.submit(tokens(20), 10)
    real = bench.runner.step

    def spoil(runs: list) -> np.ndarray:
        logits = real(runs)
        for row, run in zip(logits, (r for r in runs if r.logits == "last"), strict=True):
            if run.start + len(run.tokens) == 25:
                row[:] = np.nan
        return logits

    bench.runner.step = spoil
    bench.run()
    assert isinstance(bench.result(bad).error, StepFailed)
    assert bench.result(good).ids == expected(tokens(30, seed=1), 10)
    assert bench.core.slots[1].sequence.n_tokens == 0, "rows that led to it are not kept"
    bench.check_references()


def test_a_long_prompt_does_not_stop_others_from_decoding() -> None:
    bench = Bench(n_slots=2, n_ubatch=512)
    decoding = bench.submit(tokens(20), 200)
    for _ in range(5):
        bench.turn()
    before = len(bench.result(decoding).ids)
    bench.submit(tokens(1500, seed=1), 1)
    n_steps = len(bench.runner.steps)
    for _ in range(10):
        bench.turn()
    assert len(bench.result(decoding).ids) - before == 10
    rows = [sum(n for _, n in step) for step in bench.runner.steps[n_steps:]]
    assert max(rows) <= 100 + 1, "a row takes 1 ms here, and a step at most 100"


def test_statistics_count_what_happened() -> None:
    bench = Bench(n_slots=2)
    bench.ask(tokens(100), 5)
    bench.ask(tokens(100), 5)
    waiting = [bench.submit(tokens(50, seed=i + 1), 5) for i in range(3)]
    bench.turn()
    s = bench.core.statistics()
    assert (s.prompt_tokens_total, s.prompt_tokens_cached_total) == (100 + 1 + 100, 99)
    assert s.tokens_predicted_total == 12
    assert (s.requests_processing, s.requests_deferred) == (2, 1)
    assert (s.kv_blocks_total, s.kv_tokens) == (64, 100)
    assert s.n_tokens_max == 104
    assert s.steps_total == s.n_decode_total == len(bench.runner.steps)
    assert s.n_busy_slots_total == sum(map(len, bench.runner.steps))
    slot = s.slots[bench.result(waiting[0]).started.id_slot]
    assert (slot.is_processing, slot.id_task, slot.n_decoded, slot.n_remain) == (True, waiting[0], 1, 4)
    bench.run()
    idle = bench.core.statistics().slots
    assert not any(slot.is_processing or slot.has_next_token for slot in idle)


def test_a_fresh_slot_has_had_no_task() -> None:
    assert [s.id_task for s in Bench(n_slots=2).core.statistics().slots] == [-1, -1]


def test_shutting_down_ends_everything_as_cancelled() -> None:
    bench = Bench(n_slots=1)
    live = bench.submit(tokens(300), 100)
    for _ in range(10):
        bench.turn()
    waiting = bench.submit(tokens(300), 100)
    bench.core.shut_down()
    bench.run()
    for request_id in (live, waiting):
        assert bench.result(request_id).finished.reason is StopReason.CANCELLED
    assert bench.result(live).finished.n_cached_total == 309


def test_an_abort_fails_everything_and_the_engine_can_go_on() -> None:
    bench = Bench(n_slots=1)
    ids = [bench.submit(tokens(300), 100) for _ in range(2)]
    bench.turn()
    bench.core.abort(StepFailed("defect"))
    bench.run()
    assert all(isinstance(bench.result(i).error, StepFailed) for i in ids)
    assert bench.ask(tokens(300), 3).ids == expected(tokens(300), 3)
    bench.check_references()


def test_bytes_that_are_no_text_are_replaced_and_never_break_a_character() -> None:
    bench = Bench(tokenizer=FakeTokenizer())
    result = bench.ask(tokens(50), 60)
    assert result.text == bytes(result.ids).decode(errors="replace")
    assert not any(isinstance(e, Failed) for e in bench.events)
