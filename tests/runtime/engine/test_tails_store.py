"""Points and the store: what comes back after a restart, and what happens when it cannot."""

from collections.abc import Iterator

import numpy as np
import pytest

from runtime.engine import CacheSource, CaptureSlot, InstallPrefix
from runtime.engine.resume import CheckpointPolicy
from tests.runtime.engine.harness import Bench, join, tokens
from tests.runtime.engine.ports import DictStore
from tests.runtime.engine.tailed import LAYOUTS, TailedRunner
from tests.runtime.engine.test_store_restore import ask, settle
from tests.runtime.engine.test_tails import bench, check, n_read, points, policy


@pytest.fixture(params=LAYOUTS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


def filled(kind: str, prompt: np.ndarray, n: int = 4, **config: object) -> DictStore:
    """A store that saw one request and survived its engine."""
    store = DictStore()
    ask(bench(kind, store, **config), store, prompt, n)
    store.write()
    return store


def test_a_restart_reads_nothing_of_an_identical_prompt(kind: str) -> None:
    store, prompt = filled(kind, tokens(600)), tokens(600)
    made = bench(kind, store)
    result = check(kind, ask(made, store, prompt, 5), prompt, 5)
    assert (result.n_cached, n_read(made)) == (600, 4)
    assert result.finished.timings.cache_source is CacheSource.STORE
    made.check_references()


def test_a_restart_goes_on_from_the_release(kind: str) -> None:
    prompt = tokens(600)
    store = DictStore()
    answer = ask(bench(kind, store), store, prompt, 10).ids
    store.write()
    made, follow = bench(kind, store), join(prompt, answer, tokens(40, 1))
    result = check(kind, ask(made, store, follow, 5), follow, 5)
    assert result.n_cached == 609


def test_an_edit_after_a_restart_costs_an_interval(kind: str) -> None:
    store = filled(kind, tokens(1500))
    for n in (1499, 1000, 700, 300):
        made, edited = bench(kind, store), join(tokens(1500)[:n], tokens(50, n))
        result = check(kind, ask(made, store, edited), edited)
        assert 0 <= n - result.n_cached <= 205
        made.check_references()


def test_a_damaged_point_is_replaced_by_the_next(kind: str) -> None:
    store, prompt = filled(kind, tokens(600)), join(tokens(600), tokens(9, 1))
    known = sorted(len(key) // 4 for _, key in store.points if len(key) // 4 <= 600)
    store.damaged = set(known[-2:])
    made = bench(kind, store)
    result = check(kind, ask(made, store, prompt), prompt)
    assert result.n_cached == known[-3]
    store.damaged = set(known)
    made = bench(kind, store)
    result = check(kind, ask(made, store, prompt), prompt)
    assert result.n_cached == 0
    assert result.reason == "nothing cached; store: damaged point"
    made.check_references()


def test_blocks_that_are_damaged_fall_back_to_a_point_before_them() -> None:
    store, prompt = filled("hybrid", tokens(900)), join(tokens(900), tokens(9, 1))
    store.cut_loads_to = 512
    made = bench("hybrid", store)
    result = check("hybrid", ask(made, store, prompt), prompt)
    assert result.n_cached == 400
    made.check_references()


def test_a_point_of_the_store_beyond_that_of_ram_is_fetched(kind: str) -> None:
    store, prompt = filled(kind, tokens(900)), tokens(900)
    made = bench(kind, store)
    ask(made, store, prompt[:300])
    edited = join(prompt[:880], tokens(20, 1))
    result = check(kind, ask(made, store, edited), edited)
    assert result.n_cached > 600
    assert result.finished.timings.cache_source is CacheSource.STORE


def test_a_restored_point_stays_and_none_is_made_right_after_it(kind: str) -> None:
    store, prompt = filled(kind, tokens(900)), tokens(900)
    made = bench(kind, store)
    edited = join(prompt[:880], tokens(400, 1))
    at = ask(made, store, edited, 1).n_cached
    assert points(made)[0] == at
    assert points(made)[1] >= at + 128


def test_each_point_is_lent_once(kind: str) -> None:
    store, prompt = DictStore(), tokens(900)
    made = bench(kind, store)
    ask(made, store, prompt, 300)
    lent = [point.n_tokens for snapshot in store.offers for point in snapshot.points]
    assert lent == sorted(set(lent))
    assert lent == points(made)


def test_points_that_the_store_did_not_write_are_lent_again(kind: str) -> None:
    store, prompt = DictStore(), tokens(600)
    made = bench(kind, store)
    answer = ask(made, store, prompt).ids
    dropped = [point.n_tokens for snapshot in store.offers for point in snapshot.points]
    for snapshot in store.offers:
        snapshot.lost()
        snapshot.release()
    store.offers.clear()
    ask(made, store, join(prompt, answer, tokens(20, 1)))
    assert {point.n_tokens for point in store.offers[0].points}.issuperset(dropped)


def test_what_is_lent_stands_still_until_it_is_given_back(kind: str) -> None:
    store, prompt = DictStore(), tokens(500)
    made = bench(kind, store, checkpoints=policy(max_count=2), n_slots=1)
    ask(made, store, prompt)
    tails = made.core.pool.tails
    assert tails is not None
    lent = [(p, [part.tobytes() for part in p.parts]) for s in store.offers for p in s.points]
    for seed in range(5):
        ask(made, store, tokens(400, seed + 1), 30)
    ask(made, store, join(prompt[:450], tokens(100, 9)), 30)
    assert all([part.tobytes() for part in point.parts] == seen for point, seen in lent)
    n_states = tails.n_states
    store.write()
    assert (tails.n_states < n_states) is (tails.layout.state is not None)


def test_a_save_has_all_points_and_one_at_its_end_even_without_checkpoints(kind: str) -> None:
    for config, wanted in ((policy(), None), (policy(max_count=0), [603])):
        made = bench(kind, checkpoints=config)
        made.ask(tokens(600), 4)
        made.post(CaptureSlot(50, made.core.slots[0].id))
        made.run()
        snapshot = made.answer(50).snapshot
        assert [point.n_tokens for point in snapshot.points] == (wanted or points(made))
        assert len(snapshot.tokens) == snapshot.points[-1].n_tokens == 603
        snapshot.release()


def test_a_save_comes_back_whole_and_the_next_request_pays_nothing(kind: str) -> None:
    made, store = bench(kind), DictStore()
    first = made.ask(tokens(600), 10)
    made.post(CaptureSlot(50, 0))
    made.run()
    store.offers.append(made.answer(50).snapshot)
    store.write()
    again = bench(kind, store)
    saved = join(tokens(600), first.ids[:-1])
    again.post(InstallPrefix(51, 1, b"", saved))
    settle(again, store)
    assert again.answer(51).n_tokens == 609
    follow = join(saved, tokens(30, 1))
    result = check(kind, ask(again, store, follow), follow)
    assert result.n_cached == 609
    assert result.finished.id_slot == 1


def test_a_slot_is_left_alone_when_its_restore_fails(kind: str) -> None:
    store = filled(kind, tokens(600))
    store.damaged = {len(key) // 4 for _, key in store.points}
    made = bench(kind, store)
    prompt = tokens(300, 1)
    made.ask(prompt, 0, store=False)
    made.post(InstallPrefix(51, 0, b"", tokens(600)))
    settle(made, store)
    assert made.answer(51).n_tokens == 0
    assert made.core.slots[0].sequence.n_tokens == 300
    check(kind, made.ask(prompt, 3, store=False), prompt, 3)


def test_a_store_too_slow_costs_the_prompt_and_nothing_else(kind: str) -> None:
    store, prompt = filled(kind, tokens(600)), tokens(600)
    made = bench(kind, store)
    request = made.submit(prompt)
    made.run()
    made.now += 11
    made.run()
    check(kind, made.result(request), prompt)
    settle(made, store)
    made.check_references()


def test_a_full_pool_takes_a_nearer_point(kind: str) -> None:
    store = filled(kind, tokens(1500), n_ctx=2048)
    made = Bench(
        runner=TailedRunner(LAYOUTS[kind]), port=store, n_slots=1, n_ctx=2048, n_blocks=4,
        checkpoints=CheckpointPolicy(interval=200),
    )  # fmt: skip
    store.post = made.post
    request = made.submit(join(tokens(1500), tokens(5, 1)), 2)
    settle(made, store)
    result = made.result(request)
    assert result.started.n_cached > 700
