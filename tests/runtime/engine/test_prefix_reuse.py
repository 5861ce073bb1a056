"""What a request reuses of what is in memory, and that reuse never changes an answer."""

import numpy as np
import pytest

from runtime.engine import CacheSource, SamplingParams, StopReason
from tests.runtime.engine.harness import Bench, expected, join, tokens


def test_a_cold_answer_is_the_models() -> None:
    bench = Bench()
    result = bench.ask(tokens(700), 8)
    assert result.ids == expected(tokens(700), 8)
    assert result.n_cached == 0
    assert result.reason == "nothing cached"
    assert result.finished.timings.cache_source is CacheSource.NONE
    bench.check_references()


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513, 700])
def test_an_identical_prompt_evaluates_one_token_and_answers_the_same(n: int) -> None:
    bench = Bench()
    first = bench.ask(tokens(n), 6)
    second = bench.ask(tokens(n), 6)
    assert second.ids == first.ids == expected(tokens(n), 6)
    assert second.n_cached == n - 1
    assert second.reason == (
        "identical prompt, its last token is evaluated again" if n > 1 else second.reason
    )
    bench.check_references()


@pytest.mark.parametrize("n", [1, 16, 100, 256, 300, 511, 512, 600])
def test_a_prompt_that_diverges_reuses_exactly_the_common_prefix(n: int) -> None:
    bench = Bench(n_slots=1)
    bench.ask(tokens(650), 3)
    branch = join(tokens(n), [(tokens(650)[n] + 1) % 256], tokens(80, seed=9))
    result = bench.ask(branch, 5)
    assert result.n_cached == n
    assert result.reason == f"diverges at {n}"
    assert result.ids == expected(branch, 5)
    old = bench.ask(tokens(650), 5)
    assert old.n_cached == 649, "the branch that was left is still there"
    assert old.ids == expected(tokens(650), 5)
    bench.check_references()


def test_a_conversation_reuses_everything_the_slot_has_seen() -> None:
    bench = Bench()
    history = tokens(120)
    for turn in range(6):
        result = bench.ask(history, 50)
        assert result.ids == expected(history, 50)
        if turn:
            assert result.n_cached == len(history) - 30 - 1
            assert result.reason == f"continues the cached prefix of {result.n_cached} tokens"
        history = join(history, result.ids, tokens(30, seed=turn + 100))
    bench.check_references()


def test_a_prefix_is_shared_between_slots_and_not_copied() -> None:
    bench = Bench(n_slots=4, n_blocks=32)
    system = tokens(1024)
    prompts = [join(system, tokens(20, seed=i + 1)) for i in range(4)]
    ids = []
    for prompt in prompts:
        ids.append(bench.submit(prompt, 40))
        bench.turn()
        bench.turn()
    bench.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert bench.result(request_id).ids == expected(prompt, 40)
    assert [bench.result(i).n_cached for i in ids] == [0, 1024, 1024, 1024]
    shared = {slot.sequence.blocks[:4] for slot in bench.core.slots}
    assert len(shared) == 1
    assert bench.core.pool.n_used == 4 + 4
    bench.check_references()


def test_the_tail_of_a_sequence_that_still_decodes_can_be_reused() -> None:
    bench = Bench()
    first = bench.submit(tokens(300), 100)
    for _ in range(40):
        bench.turn()
    so_far = [i for e in bench.result(first).outputs for i in [o.id for o in e.tokens]]
    prompt = join(tokens(300), so_far, tokens(5, seed=3))
    second = bench.submit(prompt, 20)
    bench.run()
    assert bench.result(second).n_cached >= 300 + len(so_far) - 1
    assert bench.result(second).ids == expected(prompt, 20)
    assert bench.result(first).ids == expected(tokens(300), 100)
    bench.check_references()


def test_two_requests_that_continue_one_partial_block_do_not_disturb_each_other() -> None:
    bench = Bench(n_slots=3)
    bench.ask(tokens(100), 1)
    prompts = [join(tokens(100), tokens(60, seed=i)) for i in (1, 2, 3)]
    ids = [bench.submit(p, 30) for p in prompts]
    bench.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert bench.result(request_id).ids == expected(prompt, 30)
        assert bench.result(request_id).n_cached == 100
    bench.check_references()


def test_concurrent_equal_prompts_end_up_with_the_same_blocks() -> None:
    bench = Bench(n_slots=3)
    ids = [bench.submit(tokens(600), 3) for _ in range(3)]
    bench.run()
    for request_id in ids:
        assert bench.result(request_id).ids == expected(tokens(600), 3)
    assert len({slot.sequence.blocks[:2] for slot in bench.core.slots}) == 1
    bench.check_references()


def test_company_chunks_and_seeds_do_not_change_an_answer() -> None:
    sampling = SamplingParams(seed=7, temperature=1.2, repeat_penalty=1.1)
    want = expected(tokens(333), 20, sampling)
    for n_ubatch, n_company in ((512, 0), (1, 0), (17, 2), (64, 3), (2, 3)):
        bench = Bench(n_slots=4, n_ubatch=n_ubatch)
        for i in range(n_company):
            bench.submit(tokens(90 + i, seed=i + 5), 30, sampling=SamplingParams(seed=i))
        request_id = bench.submit(tokens(333), 20, sampling=sampling)
        bench.run()
        assert bench.result(request_id).ids == want


def test_cache_prompt_false_reuses_nothing_and_says_so() -> None:
    bench = Bench()
    bench.ask(tokens(300), 2)
    result = bench.ask(tokens(300), 2, cache_prompt=False)
    assert (result.n_cached, result.reason) == (0, "cache_prompt is false")
    assert result.ids == expected(tokens(300), 2)
    bench.check_references()


def test_roots_never_mix() -> None:
    bench = Bench()
    bench.ask(tokens(300), 2, root=b"a")
    assert bench.ask(tokens(300), 2, root=b"b").n_cached == 0
    assert bench.ask(tokens(300), 2, root=b"a").n_cached == 299
    bench.check_references()


def test_blocks_of_a_private_request_serve_only_its_own_slot() -> None:
    bench = Bench(n_slots=2)
    bench.ask(tokens(600), 2, store=False, id_slot=0)
    assert bench.ask(tokens(600), 2, id_slot=1).n_cached == 0
    bench = Bench(n_slots=2)
    result = bench.ask(tokens(600), 2, store=False, id_slot=0)
    again = bench.ask(tokens(600), 2, store=False, id_slot=0)
    assert again.n_cached == 599
    assert again.ids == result.ids
    assert len(bench.core.index) == 0
    bench.check_references()


def test_a_private_conversation_that_goes_on_in_public_is_shared_from_then_on() -> None:
    bench = Bench(n_slots=2)
    bench.ask(tokens(600), 2, store=False, id_slot=0)
    bench.ask(tokens(600), 2, id_slot=0)
    assert bench.ask(tokens(600), 2, id_slot=1).n_cached == 599
    bench.check_references()


def test_eviction_takes_the_longest_unused_leaf_and_the_reason_says_so() -> None:
    bench = Bench(n_slots=1, n_blocks=8)
    prompts = [tokens(600, seed=i) for i in range(5)]
    for prompt in prompts:
        assert bench.ask(prompt, 2).ids == expected(prompt, 2)
        bench.check_references()
    again = bench.ask(prompts[-1], 2)
    assert again.n_cached == 599
    lost = bench.ask(prompts[0], 2)
    assert lost.n_cached == 0
    assert lost.reason == "evicted from RAM from 0 on"
    assert lost.ids == expected(prompts[0], 2)


def test_live_slots_keep_their_blocks_under_pressure() -> None:
    bench = Bench(n_slots=2, n_ctx=1024, n_blocks=9)
    long = bench.submit(tokens(500), 400)
    for _ in range(5):
        bench.turn()
    for i in range(6):
        request_id = bench.submit(tokens(550, seed=i + 1), 3)
        while bench.result(request_id).finished is None:
            bench.turn()
        assert bench.result(request_id).ids == expected(tokens(550, seed=i + 1), 3)
        bench.check_references()
    bench.run()
    assert bench.result(long).ids == expected(tokens(500), 400)


def test_prompts_that_do_not_fit_the_pool_together_are_read_one_after_the_other() -> None:
    bench = Bench(n_slots=3, n_ctx=1024, n_blocks=5)
    ids = [bench.submit(tokens(900, seed=i), 5) for i in range(3)]
    bench.run()
    for i, request_id in enumerate(ids):
        assert bench.result(request_id).ids == expected(tokens(900, seed=i), 5)
    bench.check_references()


def test_answers_that_do_not_fit_the_pool_together_end_as_truncated() -> None:
    bench = Bench(n_slots=2, n_ctx=1024, n_blocks=4)
    ids = [bench.submit(tokens(256, seed=i), 700) for i in range(2)]
    bench.run()
    results = [bench.result(i) for i in ids]
    assert all(r.finished.reason is StopReason.LIMIT for r in results)
    assert [r.finished.truncated for r in results] == [False, True]
    for i, result in enumerate(results):
        assert result.ids == expected(tokens(256, seed=i), len(result.ids))
    assert len(results[0].ids) == 700
    bench.check_references()


def test_a_prompt_larger_than_the_pool_fails_and_the_next_one_is_answered() -> None:
    bench = Bench(n_slots=1, n_ctx=2048, n_blocks=3)
    result = bench.ask(tokens(1500), 3)
    assert str(result.error) == "all 3 blocks of the memory pool are in use"
    assert bench.ask(tokens(500), 3).ids == expected(tokens(500), 3)
    bench.check_references()


@pytest.mark.parametrize(("n_ubatch", "n_blocks"), [(96, 14), (2, 6), (3, 5), (600, 4)])
def test_random_traffic_always_answers_as_a_model_without_memory(n_ubatch: int, n_blocks: int) -> None:
    rng = np.random.default_rng(n_ubatch)
    bench = Bench(n_slots=4, n_ctx=900, n_blocks=n_blocks, n_ubatch=n_ubatch)
    trunk = [tokens(700, seed=i) for i in range(3)]
    asked = []
    for round in range(60):
        prompt = join(
            trunk[rng.integers(3)][: rng.integers(1, 700)], tokens(int(rng.integers(0, 40)), seed=round + 50)
        )
        n = int(rng.integers(1, 12))
        store = bool(rng.integers(4))
        asked.append((bench.submit(prompt, n, store=store, cache_prompt=bool(rng.integers(8))), prompt, n))
        for _ in range(rng.integers(0, 8)):
            bench.turn()
        bench.check_references()
    bench.run()
    for request_id, prompt, n in asked:
        result = bench.result(request_id)
        assert result.finished is not None
        assert result.finished.truncated or len(result.ids) == n
        assert result.ids == expected(prompt, len(result.ids))
