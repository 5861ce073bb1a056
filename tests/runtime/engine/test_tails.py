"""Models with a tail: resuming is exact, as far as points allow, and never costs the whole prompt."""

from collections.abc import Iterator

import numpy as np
import pytest

from runtime.engine import SamplingParams
from runtime.engine.resume import CheckpointPolicy
from tests.runtime.engine.harness import Bench, Result, join, tokens
from tests.runtime.engine.ports import DictStore
from tests.runtime.engine.tailed import LAYOUTS, TailedRunner, expected


@pytest.fixture(params=LAYOUTS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


def policy(**fields: object) -> CheckpointPolicy:
    return CheckpointPolicy(**({"interval": 200} | fields))


def bench(kind: str, port: DictStore | None = None, **config: object) -> Bench:
    made = Bench(runner=TailedRunner(LAYOUTS[kind]), port=port, **({"checkpoints": policy()} | config))
    if port is not None:
        port.post = made.post
    return made


def check(kind: str, result: Result, prompt: np.ndarray, n_predict: int = 4) -> Result:
    assert result.ids == expected(LAYOUTS[kind], prompt, n_predict), result.reason
    return result


def points(made: Bench, slot: int = 0) -> list[int]:
    return [point.n_tokens for point in made.core.slots[slot].sequence.points()]


def n_read(made: Bench) -> int:
    return sum(n for step in made.runner.steps for _, n in step)


def test_a_cold_prompt_leaves_points_and_answers_as_without(kind: str) -> None:
    made, prompt = bench(kind), tokens(333)
    check(kind, made.ask(prompt), prompt)
    interval = [128, 256] if kind == "compressed" else [200]
    assert points(made) == [*interval, 328, 333, 336]
    made.check_references()


def test_a_conversation_goes_on_from_its_release(kind: str) -> None:
    made, prompt = bench(kind), tokens(300)
    first = made.ask(prompt, 10)
    follow = join(prompt, first.ids, tokens(50, 1))
    result = check(kind, made.ask(follow), follow)
    # the last token of the answer was sampled and never read
    assert result.n_cached == 309
    assert result.reason == "continues the cached prefix of 309 tokens"


def test_an_edit_costs_an_interval_and_never_the_prompt(kind: str) -> None:
    made, prompt = bench(kind, n_ctx=4096), tokens(2000)
    made.ask(prompt)
    for n in (1999, 1500, 777, 400, 1):
        edited = join(prompt[:n], tokens(2000 - n, n))
        result = check(kind, made.ask(edited), edited)
        assert n - result.n_cached <= 200 + 5
        assert result.n_cached <= n
    made.check_references()


def test_an_identical_prompt_is_answered_without_reading_anything(kind: str) -> None:
    made, prompt = bench(kind), tokens(300)
    made.ask(prompt)
    before = n_read(made)
    result = check(kind, made.ask(prompt, 3), prompt, 3)
    # of the three tokens the last is not evaluated
    assert (result.n_cached, n_read(made) - before) == (300, 2)
    assert result.reason == "identical prompt, all 300 tokens and the logits after them were kept"
    assert result.finished.timings.prompt_n == 0


def test_a_prompt_that_was_only_read_is_answered_at_once(kind: str) -> None:
    made, prompt = bench(kind), tokens(300)
    assert made.ask(prompt, 0).ids == []
    before = n_read(made)
    check(kind, made.ask(prompt, 1), prompt, 1)
    assert n_read(made) == before
    assert made.ask(prompt, 0).n_cached == 300


def test_logits_of_a_point_are_those_before_the_sampler_changed_them(kind: str) -> None:
    made, prompt = bench(kind), tokens(300)
    plain = expected(LAYOUTS[kind], prompt, 1)
    biased = SamplingParams(temperature=0.0, logit_bias=((plain[0], -1e9),))
    assert made.ask(prompt, 1, sampling=biased).ids != plain
    assert made.ask(prompt, 1).ids == plain


def test_the_farthest_point_before_the_divergence_is_taken_not_the_newest(kind: str) -> None:
    made, prompt = bench(kind, n_slots=1, checkpoints=policy(tolerance=0)), tokens(700)
    made.ask(prompt, 1)
    known = points(made)
    edited = join(prompt[:650], tokens(100, 1))
    result = check(kind, made.ask(edited), edited)
    # rings still have the rows of 650 itself
    assert result.n_cached == (650 if kind == "compressed" else max(n for n in known if n <= 650))


def test_the_restored_point_stays_and_none_is_made_right_after_it(kind: str) -> None:
    made, prompt = bench(kind), tokens(700)
    made.ask(prompt, 1)
    known = points(made)
    edited = join(prompt[:500], tokens(300, 1))
    at = made.ask(edited, 1).n_cached
    assert at in points(made)
    after = [n for n in points(made) if n > at]
    assert min(after) >= at + 128
    assert [n for n in points(made) if n <= at] == [n for n in known if n <= at]


def test_a_rollback_of_one_sequence_leaves_the_other_alone(kind: str) -> None:
    made, shared = bench(kind), tokens(400)
    mine, other = join(shared, tokens(30, 1)), join(shared, tokens(40, 2))
    ids = [made.submit(mine, 60), made.submit(other, 60)]
    made.run()
    for request, prompt in zip(ids, (mine, other), strict=True):
        check(kind, made.result(request), prompt, 60)
    longer = join(other, made.result(ids[1]).ids)
    going_on = made.submit(longer, 40, id_slot=1)
    for _ in range(3):
        made.turn()
    edited = join(shared[:390], tokens(20, 3))
    check(kind, made.ask(edited, 10, id_slot=0), edited, 10)
    check(kind, made.result(going_on), longer, 40)
    made.check_references()


def test_a_point_of_one_slot_serves_another(kind: str) -> None:
    made, prompt = bench(kind), tokens(600)
    made.ask(prompt, 1, id_slot=0)
    follow = join(prompt, tokens(20, 1))
    result = check(kind, made.ask(follow, id_slot=1), follow)
    assert result.n_cached == 600


def test_a_sibling_that_shares_less_may_have_the_farther_point(kind: str) -> None:
    made = bench(kind, checkpoints=policy(interval=0, tolerance=0))
    stem = tokens(200)
    made.ask(join(stem, [1] * 20), 0)
    # shares 219 tokens with the query and has no point within them
    made.ask(join(stem, [1] * 19, [2] * 8), 0, store=True)
    query = join(stem, [1] * 20, [3] * 5)
    assert made.ask(query, 0).n_cached == 220


def test_turn_starts_get_points_but_not_those_of_short_turns(kind: str) -> None:
    made, prompt = bench(kind, checkpoints=policy(interval=0)), tokens(400)
    made.ask(prompt, 1, turn_starts=(0, 10, 20, 100, 110, 300, 390))
    assert points(made) == [20, 110, 300, 390, 395, 400]
