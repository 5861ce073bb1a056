"""How many points stay, and which: counts per sequence, bytes over all, the longest unused first."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine import EraseSlot
from runtime.engine.commands import ForgetText
from runtime.engine.resume import Eviction, spaced_turns, surplus
from tests.runtime.engine.harness import Bench, join, tokens
from tests.runtime.engine.tailed import LAYOUTS
from tests.runtime.engine.test_tails import bench, check, points, policy


@pytest.fixture(params=LAYOUTS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


@pytest.mark.parametrize(
    ("eviction", "positions", "gone"),
    [
        (Eviction.VARIANCE, [10, 20, 500, 1000], 1),
        (Eviction.VARIANCE, [0, 100, 150, 200, 600], 2),
        (Eviction.VARIANCE, [1, 2, 3], 1),
        (Eviction.VARIANCE, [5, 9], 0),
        (Eviction.VARIANCE, [0, 10, 20, 30, 40], 1),
        (Eviction.AUTO, [10, 20, 500, 1000], 1),
        (Eviction.FIFO, [10, 20, 500, 1000], 0),
    ],
)
def test_surplus(eviction: Eviction, positions: list[int], gone: int) -> None:
    assert surplus(positions, eviction) == gone


def test_a_wanted_point_goes_last() -> None:
    assert surplus([10, 20, 25, 1000], Eviction.VARIANCE, wanted=20) == 2
    assert surplus([10, 20, 1000], Eviction.VARIANCE, wanted=20) == 1


@given(st.sets(st.integers(1, 10_000), min_size=3, max_size=60))
def test_thinning_keeps_the_first_and_the_last(found: set[int]) -> None:
    positions = sorted(found)
    ends = positions[0], positions[-1]
    while len(positions) > 2:
        del positions[surplus(positions, Eviction.VARIANCE)]
    assert tuple(positions) == ends


def test_thinning_a_row_of_equal_steps_leaves_it_even() -> None:
    positions: list[int] = []
    for n in range(512, 512 * 400, 512):
        positions.append(n)
        if len(positions) > 32:
            del positions[surplus(positions, Eviction.VARIANCE)]
    gaps = np.diff(positions[:-1])
    assert gaps.max() <= 4 * gaps.min()


@pytest.mark.parametrize(
    ("starts", "kept"),
    [
        ((), set()),
        ((0, 5), {5}),
        ((10, 74, 137), {10, 137}),
        ((10, 74, 138), {10, 74, 138}),
        ((5, 1000, 2000), {5, 1000}),
        ((7, 7, 7), {7}),
    ],
)
def test_turns_worth_a_point(starts: tuple[int, ...], kept: set[int]) -> None:
    assert spaced_turns(starts, 1500) == kept


def test_a_sequence_has_at_most_so_many_points(kind: str) -> None:
    made = bench(kind, n_ctx=4096, checkpoints=policy(max_count=4, interval=128))
    made.ask(tokens(2500), 200)
    kept = points(made)
    assert len(kept) == 4
    assert (kept[0], kept[-1]) == (128, 2699)
    assert kept[2] == 2500, "another answer to the same prompt is likely to be asked for"
    assert made.core.slots[0].state().n_checkpoints == 4


def test_fifo_drops_the_first(kind: str) -> None:
    made = bench(kind, n_ctx=4096, checkpoints=policy(max_count=3, interval=128, eviction=Eviction.FIFO))
    made.ask(tokens(1500), 4)
    assert points(made) == [1495, 1500, 1503]


def test_no_points_when_they_are_turned_off(kind: str) -> None:
    made, prompt = bench(kind, checkpoints=policy(max_count=0)), tokens(500)
    check(kind, made.ask(prompt), prompt)
    assert points(made) == []
    edited = join(prompt[:200], tokens(9, 1))
    result = check(kind, made.ask(edited), edited)
    assert (result.n_cached, result.reason) == (0, "no checkpoint nearer than at 0")


def total(made: Bench) -> int:
    """Bytes of all points of the index, counted anew."""
    found = {id(p): p.n_bytes for node in made.core.index.nodes() for p in node.points.values()}
    return sum(found.values())


def ask_all(made: Bench, prompts: Sequence[np.ndarray]) -> None:
    for prompt in prompts:
        made.ask(prompt, 2)
        assert made.core.index.point_bytes == total(made)


def test_all_points_together_stay_within_their_memory(kind: str) -> None:
    free = bench(kind, n_blocks=200)
    ask_all(free, [tokens(600, seed) for seed in range(6)])
    budget = total(free) // 2
    made = bench(kind, n_blocks=200, point_bytes=budget)
    ask_all(made, [tokens(600, seed) for seed in range(6)])
    assert 0.6 * budget < total(made) <= budget
    assert made.core.statistics().points_bytes == total(made)


def test_thinning_begins_with_what_was_unused_the_longest(kind: str) -> None:
    prompts = [tokens(900, seed) for seed in range(4)]
    free = bench(kind, n_blocks=200, n_slots=1)
    ask_all(free, prompts)
    made = bench(kind, n_blocks=200, n_slots=1, point_bytes=total(free) - 1)
    ask_all(made, prompts)

    def kept(prompt: np.ndarray) -> list[int]:
        found, node = [], None
        match = made.core.index.match(b"", prompt)
        for node in (*match.nodes, match.tail):
            found += [point.n_tokens for point in node.points.values()]
        return sorted(found)

    whole = kept(prompts[3])
    assert len(kept(prompts[0])) < len(whole)
    assert kept(prompts[1]) == kept(prompts[2]) == whole
    assert (kept(prompts[0])[0], kept(prompts[0])[-1]) == (whole[0], whole[-1])


def test_an_answer_to_the_same_prompt_costs_nothing_even_when_memory_is_short(kind: str) -> None:
    free = bench(kind)
    free.ask(tokens(900), 30)
    made = bench(kind, point_bytes=total(free) - 1)
    made.ask(tokens(900), 30)
    assert total(made) < total(free)
    assert made.ask(tokens(900), 2).n_cached == 900


def test_a_budget_smaller_than_any_point_keeps_none_and_answers_all_the_same(kind: str) -> None:
    made, prompt = bench(kind, point_bytes=10), tokens(500)
    check(kind, made.ask(prompt), prompt)
    assert total(made) == 0
    follow = join(prompt, tokens(5, 1))
    check(kind, made.ask(follow), follow)


def test_a_private_conversation_goes_on_from_its_own_points_and_nobody_else_does(kind: str) -> None:
    made, prompt = bench(kind), tokens(700)
    check(kind, made.ask(prompt, store=False, id_slot=0), prompt)
    assert total(made) == 0
    edited = join(prompt[:500], tokens(30, 1))
    assert made.ask(edited, id_slot=1).n_cached == 0
    result = check(kind, made.ask(edited, store=False, id_slot=0), edited)
    assert result.n_cached >= 384
    made.check_references()


def test_a_private_conversation_that_becomes_public_brings_its_points(kind: str) -> None:
    made, prompt = bench(kind), tokens(700)
    made.ask(prompt, store=False, id_slot=0)
    follow = join(prompt, tokens(30, 1))
    assert made.ask(follow, id_slot=0).n_cached == 700
    edited = join(prompt[:500], tokens(30, 2))
    result = check(kind, made.ask(edited, id_slot=1), edited)
    assert result.n_cached >= 384


def test_a_private_conversation_thins_out_nobody_elses_points(kind: str) -> None:
    made = bench(kind, n_ctx=4096, checkpoints=policy(max_count=4, interval=128))
    prompt = tokens(700)
    made.ask(prompt, id_slot=0)
    before = points(made)
    made.ask(join(prompt, tokens(900, 1)), store=False, id_slot=1)
    assert points(made) == before
    made.check_references()


def test_private_points_count_towards_the_memory(kind: str) -> None:
    free = bench(kind)
    free.ask(tokens(900), store=False)
    (sequence,) = [slot.sequence for slot in free.core.slots if slot.sequence.n_tokens]
    budget = sum(point.n_bytes for point in sequence.own_points) * 2 // 3
    made = bench(kind, point_bytes=budget)
    made.ask(tokens(900), store=False, id_slot=0)
    own = made.core.slots[0].sequence.own_points
    assert 0 < sum(point.n_bytes for point in own) <= budget


def test_erasing_and_forgetting_take_the_points_along(kind: str) -> None:
    made, prompt = bench(kind), tokens(600)
    made.ask(prompt)
    made.post(EraseSlot(70, 0))
    made.run()
    assert (total(made), made.core.index.point_bytes) == (0, 0)
    assert made.ask(prompt).n_cached == 0
    text = bytes(prompt[:20].astype(np.uint8))
    made.post(ForgetText(71, b"", text, lambda part: bytes(part.astype(np.uint8))))
    made.run()
    assert (total(made), made.core.index.point_bytes) == (0, 0)
    tails = made.core.pool.tails
    assert (tails.n_states, tails.n_rings) == (0, 0)


def test_evicted_blocks_take_their_points_along(kind: str) -> None:
    made = bench(kind, n_blocks=12, n_slots=1, n_ctx=1024)
    ask_all(made, [tokens(900, seed) for seed in range(5)])
    assert made.core.index.point_bytes == total(made)
    made.check_references()
    result = made.ask(tokens(900, 0), 2)
    assert result.n_cached < 900
