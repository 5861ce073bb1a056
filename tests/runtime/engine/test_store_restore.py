"""Prefixes from the store: exact when they come, and never waited for without end."""

import numpy as np
import pytest

from runtime.engine import CacheSource, LoadDone, LookupDone, StopReason
from runtime.engine.commands import Cancel
from runtime.memory.layout import BLOCK
from tests.runtime.engine.harness import Bench, Result, expected, join, tokens
from tests.runtime.engine.ports import DictStore


def with_store(store: DictStore | None = None, **options: float) -> tuple[Bench, DictStore]:
    store = store or DictStore()
    bench = Bench(port=store, **options)
    store.post = bench.post
    return bench, store


def settle(bench: Bench, store: DictStore) -> None:
    bench.run()
    while store.answer():
        bench.run()


def ask(bench: Bench, port: DictStore, prompt: np.ndarray, n: int = 4, **fields: object) -> Result:
    request_id = bench.submit(prompt, n, **fields)
    settle(bench, port)
    return bench.result(request_id)


def filled(prompt: np.ndarray, n: int = 4) -> DictStore:
    """A store that saw one request and survived its engine."""
    bench, store = with_store()
    ask(bench, store, prompt, n)
    store.write()
    return store


@pytest.mark.parametrize("n", [256, 257, 300, 511, 512, 700, 1500])
def test_a_restart_evaluates_one_token_and_answers_the_same(n: int) -> None:
    bench, store = with_store(filled(tokens(n)))
    result = ask(bench, store, tokens(n), 12)
    assert result.ids == expected(tokens(n), 12)
    assert result.n_cached == n - 1
    assert result.finished.timings.cache_source is CacheSource.STORE
    assert result.reason == "identical prompt, its last token is evaluated again"
    bench.check_references()


@pytest.mark.parametrize("n", [1, 255, 256, 300, 512, 599])
def test_a_divergence_is_restored_up_to_the_common_prefix(n: int) -> None:
    bench, store = with_store(filled(tokens(700)))
    prompt = join(tokens(n), [(tokens(700)[n] + 1) % 256], tokens(300, seed=4))
    result = ask(bench, store, prompt, 6)
    assert result.ids == expected(prompt, 6)
    assert result.n_cached == n
    assert result.reason == f"the store holds {n} tokens of it"
    bench.check_references()


def test_behind_restored_rows_is_nothing_whatever_the_blocks_held_before() -> None:
    bench, store = with_store(filled(tokens(700)))
    pool = bench.core.pool
    for block in [pool.allocate() for _ in range(4)]:
        for view in pool.views(block, BLOCK):
            view.fill(0xEE)
        pool.drop(block)
    assert ask(bench, store, tokens(700), 1).n_cached == 699
    (last,) = bench.core.slots[0].sequence.blocks[2:]
    for view, used in zip(pool.views(last, BLOCK), pool.views(last, 700 - 512), strict=True):
        assert used.any() and not view[used.size :].any()


def test_what_ram_has_is_not_loaded_again() -> None:
    store = filled(tokens(1200))
    bench, store = with_store(store)
    ask(bench, store, tokens(600), 1)
    prompt = tokens(1200)
    request_id = bench.submit(prompt, 5)
    bench.run()
    ((_, _, _, have),) = store.lookups
    assert have == 600
    store.answer()
    ((_, _, _, n_tokens, destinations, _),) = store.loads
    assert n_tokens == 1199
    assert [(d.index, d.n_rows) for d in destinations] == [(2, 256), (3, 256), (4, 175)]
    settle(bench, store)
    assert bench.result(request_id).ids == expected(prompt, 5)
    assert bench.result(request_id).n_cached == 1199
    bench.check_references()


def test_the_store_is_not_asked_when_ram_has_it_all() -> None:
    bench, store = with_store()
    ask(bench, store, tokens(300))
    bench.submit(tokens(300))
    bench.run()
    assert store.lookups == []


@pytest.mark.parametrize(("cut", "n"), [(0, 0), (256, 256), (600, 512), (898, 768)])
def test_a_damaged_record_costs_only_what_comes_after_it(cut: int, n: int) -> None:
    store = filled(tokens(900))
    store.cut_loads_to = cut
    bench, store = with_store(store)
    result = ask(bench, store, tokens(900), 8)
    assert result.ids == expected(tokens(900), 8)
    assert result.n_cached == n
    assert result.reason.endswith("store: damaged record")
    bench.check_references()
    assert ask(bench, store, tokens(900), 8).ids == expected(tokens(900), 8)


def test_a_load_that_fails_at_once_leaves_what_ram_has() -> None:
    bench, store = with_store(filled(tokens(900)))
    ask(bench, store, tokens(300), 1)
    store.cut_loads_to = 0
    result = ask(bench, store, tokens(900), 5)
    assert (result.n_cached, result.finished.timings.cache_source) == (300, CacheSource.RAM)
    assert result.ids == expected(tokens(900), 5)
    bench.check_references()


def test_other_slots_go_on_while_one_is_restored() -> None:
    bench, store = with_store(filled(tokens(700)))
    busy = bench.submit(tokens(50, seed=3), 200)
    bench.run()
    store.answer()
    for _ in range(5):
        bench.turn()
    waiting = bench.submit(tokens(700), 3)
    for _ in range(20):
        bench.turn()
    assert len(bench.result(busy).ids) >= 20
    assert bench.result(waiting).started is None
    settle(bench, store)
    assert bench.result(waiting).ids == expected(tokens(700), 3)
    assert bench.result(busy).ids == expected(tokens(50, seed=3), 200)


def test_a_store_that_never_answers_delays_a_request_until_the_deadline_only() -> None:
    bench, store = with_store(filled(tokens(700)))
    request_id = bench.submit(tokens(700), 5)
    bench.run()
    assert bench.core.next_deadline() == 10.0
    assert bench.result(request_id).started is None
    bench.now = 10.0
    bench.run()
    result = bench.result(request_id)
    assert result.ids == expected(tokens(700), 5)
    assert result.reason == "nothing cached; store: the store did not answer in time"
    again = bench.submit(tokens(300, seed=8), 5)
    bench.run()
    assert bench.result(again).finished is not None, "it is not asked again while it owes an answer"
    settle(bench, store)
    bench.submit(tokens(310, seed=9), 1)
    bench.run()
    assert len(store.lookups) == 1, "it answered, so it is asked again"


def test_a_late_load_writes_to_nobodys_blocks() -> None:
    bench, store = with_store(filled(tokens(900)), n_blocks=12)
    request_id = bench.submit(tokens(900), 300)
    bench.run()
    lookups, store.lookups = store.lookups, []
    bench.post(LookupDone(lookups[0][0], 899, ""))
    (load,) = store.loads
    bench.now = 11.0
    for _ in range(10):
        bench.turn()
    for views in load[4]:
        for segment in views.segments:
            segment[:] = 0xEE
    bench.run()
    assert bench.result(request_id).ids == expected(tokens(900), 300)
    used = bench.core.pool.n_used
    bench.post(LookupDone(load[0], 5, "confused"))
    assert bench.core.pool.n_used == used, "an answer of the wrong kind frees nothing"
    bench.post(LoadDone(load[0], 899, ""))
    assert bench.core.pool.n_used == used - 4
    bench.check_references()


def test_a_request_cancelled_while_it_is_restored_frees_its_slot_at_once() -> None:
    bench, store = with_store(filled(tokens(900)), n_slots=1)
    request_id = bench.submit(tokens(900), 5)
    bench.run()
    store.lookups, lookups = [], store.lookups
    bench.post(LookupDone(lookups[0][0], 899, ""))
    bench.post(Cancel(request_id))
    bench.run()
    assert bench.result(request_id).finished.reason is StopReason.CANCELLED
    other = bench.submit(tokens(100, seed=2), 3)
    bench.run()
    settle(bench, store)
    assert bench.result(other).ids == expected(tokens(100, seed=2), 3)
    bench.check_references()


def test_a_silent_store_is_noticed_even_when_every_client_leaves_early() -> None:
    bench, store = with_store(filled(tokens(900)), n_blocks=24)
    request_id = bench.submit(tokens(900), 5)
    bench.run()
    bench.post(Cancel(request_id))
    bench.now = 10.0
    other = bench.submit(tokens(900), 5)
    bench.run()
    assert bench.result(other).reason.endswith("the store did not answer in time")
    assert len(store.lookups) == 1


def test_answers_nobody_waits_for_are_ignored() -> None:
    bench, _ = with_store()
    bench.post(LookupDone(77, 1000, ""))
    bench.post(LoadDone(78, 1000, ""))
    assert not bench.turn()


def test_a_store_that_claims_too_much_is_cut_to_what_was_asked() -> None:
    bench, store = with_store(filled(tokens(600)))
    request_id = bench.submit(tokens(600), 5)
    bench.run()
    ticket = store.lookups.pop()[0]
    bench.post(LookupDone(ticket, 10**9, ""))
    load = store.loads.pop()
    done = store._load(*load)
    bench.post(LoadDone(done.ticket, 10**9, ""))
    bench.run()
    assert bench.result(request_id).ids == expected(tokens(600), 5)
    assert bench.result(request_id).n_cached == 599


def test_a_restore_takes_what_fits_into_the_pool() -> None:
    bench, store = with_store(filled(tokens(1500)), n_blocks=8, n_slots=2)
    busy = bench.submit(tokens(900, seed=5), 30)
    bench.run()
    store.answer()
    bench.turn()
    bench.turn()
    request_id = bench.submit(tokens(1500), 3)
    settle(bench, store)
    assert store.seen[-1] == ("release", 929)
    store.write()
    settle(bench, store)
    assert bench.result(busy).ids == expected(tokens(900, seed=5), 30)
    assert bench.result(request_id).ids == expected(tokens(1500), 3)
    bench.check_references()


def test_offers_come_at_the_prompts_end_with_each_block_and_at_release() -> None:
    bench, store = with_store()
    ask(bench, store, tokens(300), 500)
    assert store.seen == [("prompt_end", 256), ("interval", 512), ("interval", 768), ("release", 799)]
    assert [b.n_rows for b in store.offers[-1].blocks] == [256, 256, 256, 31]


def test_short_and_private_prompts_are_not_offered() -> None:
    bench, store = with_store()
    ask(bench, store, tokens(100), 3)
    ask(bench, store, tokens(600, seed=1), 300, store=False)
    assert store.seen == []
    bench.check_references()


def test_lent_bytes_stand_still_while_the_conversation_goes_on() -> None:
    bench, store = with_store(n_slots=2)
    first = ask(bench, store, tokens(300), 10)
    history = join(tokens(300), first.ids)
    lent = [[s.tobytes() for b in offer.blocks for s in b.segments] for offer in store.offers]
    offers = list(store.offers)
    for turn in range(4):
        history = join(history, tokens(9, seed=turn))
        result = ask(bench, store, history, 40)
        assert result.ids == expected(history, 40)
        history = join(history, result.ids)
        assert lent == [[s.tobytes() for b in offer.blocks for s in b.segments] for offer in offers]
        bench.check_references()
    store.write()
    fresh, store = with_store(store)
    result = ask(fresh, store, join(history, [5]), 20)
    assert result.ids == expected(join(history, [5]), 20)
    assert result.n_cached == len(history) - 1, "the last sampled token was never evaluated"


def test_a_pool_full_of_lent_blocks_waits_for_the_store_and_goes_on_when_they_return() -> None:
    bench, store = with_store(n_slots=1, n_ctx=1024, n_blocks=4)
    ask(bench, store, tokens(900), 3)
    request_id = bench.submit(tokens(900, seed=1), 3)
    settle(bench, store)
    assert bench.result(request_id).finished is None
    assert bench.stepper.stalled
    store.write()
    assert bench.n_wakes > 0
    settle(bench, store)
    assert bench.result(request_id).ids == expected(tokens(900, seed=1), 3)
    bench.check_references()


def test_a_pool_whose_blocks_never_return_fails_the_request_after_the_deadline() -> None:
    bench, store = with_store(n_slots=1, n_ctx=1024, n_blocks=4)
    ask(bench, store, tokens(900), 3)
    request_id = bench.submit(tokens(900, seed=1), 3)
    settle(bench, store)
    assert bench.stepper.next_deadline() == 1.0
    bench.now = 9.5
    bench.run()
    assert store.n_recalls == 1 and bench.result(request_id).error is None
    bench.now = 10.5
    bench.run()
    assert "memory pool" in str(bench.result(request_id).error)


def test_a_store_that_is_asked_for_its_loans_and_returns_them_at_once_fails_nobody() -> None:
    bench, store = with_store(n_slots=1, n_ctx=1024, n_blocks=4)
    ask(bench, store, tokens(900), 3)
    request_id = bench.submit(tokens(900, seed=1), 3)
    settle(bench, store)
    store.gives_back = True
    bench.now = 1.5
    n_wakes = bench.n_wakes
    settle(bench, store)
    assert store.n_recalls == 1 and bench.n_wakes > n_wakes
    settle(bench, store)
    assert bench.result(request_id).ids == expected(tokens(900, seed=1), 3)


def test_a_pool_whose_blocks_are_being_written_is_waited_for_as_long_as_that_takes() -> None:
    bench, store = with_store(n_slots=1, n_ctx=1024, n_blocks=4)
    ask(bench, store, tokens(900), 3)
    request_id = bench.submit(tokens(900, seed=1), 3)
    settle(bench, store)
    store.is_writing = True
    for second in range(1, 60):
        bench.now = float(second)
        bench.run()
        assert bench.result(request_id).error is None and bench.stepper.next_deadline() == second + 1
    store.write()
    settle(bench, store)
    assert bench.result(request_id).ids == expected(tokens(900, seed=1), 3)
    bench.check_references()


@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_over_a_moody_store_always_answers_as_a_model_without_memory(seed: int) -> None:
    rng = np.random.default_rng(seed)
    store = DictStore()
    trunk = [tokens(800, seed=i) for i in range(3)]
    for _ in range(3):  # engine lifetimes
        bench, store = with_store(store, n_slots=3, n_ctx=1000, n_blocks=16, n_ubatch=128)
        asked = []
        for round in range(25):
            prompt = join(
                trunk[rng.integers(3)][: rng.integers(1, 800)], tokens(int(rng.integers(30)), round)
            )
            n = int(rng.integers(1, 9))
            asked.append((bench.submit(prompt, n, store=bool(rng.integers(5))), prompt, n))
            for _ in range(rng.integers(0, 9)):
                bench.turn()
                store.cut_loads_to = [None, None, int(rng.integers(800))][rng.integers(3)]
                match rng.integers(5):
                    case 0 | 1:
                        store.answer()
                    case 2:
                        store.write()
                    case 3:
                        bench.now += float(rng.choice([0.0, 1.0, 12.0]))
            bench.check_references(lent=True)
        store.write()
        while any(bench.result(i).finished is None for i, _, _ in asked):
            settle(bench, store)
            store.write()
        for request_id, prompt, n in asked:
            assert bench.result(request_id).ids == expected(prompt, n)
        assert bench.core.pool.n_leases == 0
        bench.check_references()


def test_a_branch_and_its_trunk_are_both_restored_after_a_restart() -> None:
    bench, store = with_store()
    trunk = tokens(1000)
    branches = [join(trunk[: 200 * i + 100], tokens(150, seed=i)) for i in range(1, 5)]
    for prompt in (trunk, *branches):
        ask(bench, store, prompt, 2)
    store.write()
    bench, store = with_store(store)
    for prompt in (trunk, *branches):
        result = ask(bench, store, prompt, 7)
        assert result.ids == expected(prompt, 7)
        assert result.n_cached == len(prompt) - 1
        bench.check_references()
    assert BLOCK == 256
