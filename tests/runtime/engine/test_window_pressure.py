"""Answers under so little memory that rows of windowed layers go, and where prompts are resumed then."""

import mmap

import numpy as np
import pytest

from runtime.memory.layout import BLOCK
from runtime.memory.sizing import pool_size, sequence_bytes
from tests.runtime.engine.fakes import LAYOUT
from tests.runtime.engine.harness import Bench, Result, expected, join, tokens
from tests.runtime.engine.ports import DictStore

PAGE = mmap.PAGESIZE  # what a block takes in each of the two cache groups; runs have two blocks


def bench_with(n_parts: int, store: DictStore | None = None, **options: object) -> Bench:
    bench = Bench(port=store, **({"n_ctx": 4096, "pool_bytes": n_parts * PAGE} | options))
    if store is not None:
        store.post = bench.post
    return bench


def ask(bench: Bench, prompt: np.ndarray, n_predict: int = 4, **fields: object) -> Result:
    request_id = bench.submit(prompt, n_predict, **fields)
    bench.run()
    port = bench.port
    while isinstance(port, DictStore) and port.answer():
        bench.run()
    result = bench.result(request_id)
    assert result.ids == expected(prompt, n_predict)
    return result


def test_a_divergence_is_resumed_at_a_place_that_is_left_and_the_answer_says_why_not_nearer() -> None:
    bench = bench_with(16 + 6, n_slots=1)
    prompt = tokens(14 * BLOCK)
    ask(bench, prompt)
    other = join(prompt[: 7 * BLOCK + 50], tokens(40, seed=1))
    result = ask(bench, other)
    assert 0 < result.n_cached < 7 * BLOCK
    assert result.reason == f"rows of windowed layers are gone beyond {result.n_cached}"
    assert ask(bench, join(other, tokens(9))).n_cached == len(other)


def test_with_memory_enough_any_place_is_one_to_resume_at() -> None:
    bench = bench_with(64, n_slots=1)
    prompt = tokens(14 * BLOCK)
    ask(bench, prompt)
    assert ask(bench, join(prompt[: 7 * BLOCK + 50], tokens(40, seed=1))).n_cached == 7 * BLOCK + 50


def test_the_store_has_rows_of_windows_that_went_and_only_those_at_the_end_are_loaded() -> None:
    store = DictStore()
    bench_before = bench_with(64, store, n_slots=1)
    prompt = tokens(14 * BLOCK)
    ask(bench_before, prompt)
    store.write()
    bench = bench_with(16 + 6, store, n_slots=1)
    assert ask(bench, prompt).n_cached == 14 * BLOCK - 1
    store.write()
    loads: list[list[bool]] = []
    answer = store.answer

    def answer_and_look() -> bool:
        for load in store.loads:
            loads.append([bool(views.segments[1].size) for views in load[4]])
        return answer()

    store.answer = answer_and_look
    n = 7 * BLOCK + 50
    result = ask(bench, join(prompt[:n], tokens(40, seed=1)))
    assert result.n_cached == n
    assert [had[-2:] for had in loads] == [[True, True]]
    assert not any(loads[0][:-2])
    bench.check_references()


def test_a_store_that_lacks_rows_of_windows_is_believed_as_far_as_they_go() -> None:
    store = DictStore()
    ask(bench_with(64, store, n_slots=1), tokens(10 * BLOCK))
    store.write()
    for (_, key), record in store.records.items():
        if len(key) // 4 // BLOCK in (6, 9, 10):
            record.segments = (record.segments[0], b"")
    bench = bench_with(64, store, n_slots=1)
    assert ask(bench, tokens(10 * BLOCK)).n_cached == 8 * BLOCK
    bench = bench_with(64, store, n_slots=1)
    assert ask(bench, tokens(10 * BLOCK)[: 6 * BLOCK + 10]).n_cached == 5 * BLOCK


@pytest.mark.parametrize("writes", [True, False])
def test_every_slot_has_its_whole_context_in_the_smallest_pool_even_while_the_store_is_slow(
    writes: bool,
) -> None:
    size = pool_size(LAYOUT, 3, 2048, 64, 0)
    store = DictStore()
    bench = Bench(
        n_slots=3,
        n_ctx=2048,
        n_blocks=size.n_blocks,
        pool_bytes=size.max_bytes,
        lent_bytes=size.spare_bytes,
        n_ubatch=64,
        port=store,
    )
    store.post = bench.post
    prompts = [tokens(1500, seed=seed) for seed in range(3)]
    ids = [bench.submit(prompt, 500, id_slot=i) for i, prompt in enumerate(prompts)]
    for turn in range(100_000):
        if writes and not turn % 7:
            store.write()
        if not (bench.turn() | store.answer()):
            break
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert bench.result(request_id).ids == expected(prompt, 500)
    bench.check_references()


def test_while_a_long_prompt_is_read_the_store_is_lent_windows_that_memory_will_lack() -> None:
    store = DictStore()
    n_ctx, n_spare = 44 * BLOCK, 12
    size = sequence_bytes(LAYOUT, n_ctx, 512) + n_spare * PAGE
    bench = bench_with(0, store, n_slots=1, n_ctx=n_ctx, pool_bytes=size, lent_bytes=n_spare * PAGE)
    prompt = tokens(42 * BLOCK)
    request_id = bench.submit(prompt, 1)
    while bench.turn() | store.answer():
        store.write()
    assert bench.result(request_id).ids == expected(prompt, 1)
    in_memory = sum(bench.core.pool.resident(1, node.block) for node in bench.core.index.nodes())
    stored = sum(bool(record.segments[1]) for record in store.records.values())
    assert stored > in_memory + n_spare // 2
    assert [why for why, _ in store.seen[:2]] == ["interval", "interval"]


def test_what_an_answer_s_end_sees_is_stored_as_soon_as_the_store_has_given_other_rows_back() -> None:
    store = DictStore()
    bench = bench_with(64, store, n_slots=1, lent_bytes=0)
    prompt = tokens(4 * BLOCK)
    result = ask(bench, prompt, 270)  # the end sees two blocks, and one of the prompt is lent
    whole = join(prompt, result.ids)
    assert [snapshot.why for snapshot in store.offers] == ["prompt_end", "interval", "release"]
    store.write()
    bench.run()
    store.write()
    bench.run()
    assert not store.offers
    after = bench_with(64, store, n_slots=1, lent_bytes=0)
    assert ask(after, join(whole[:-1], tokens(5))).n_cached == len(whole) - 1


@pytest.mark.parametrize("with_store", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_random_traffic_in_little_memory_always_answers_as_a_model_without_any(
    seed: int, with_store: bool
) -> None:
    rng = np.random.default_rng(seed)
    store = DictStore() if with_store else None
    n_ubatch = int(rng.choice([60, 200]))
    needed = 3 * sequence_bytes(LAYOUT, 1500, n_ubatch)
    spare = int(rng.integers(0, 12)) * PAGE
    bench = bench_with(
        0, store, n_slots=3, n_ctx=1500, pool_bytes=needed + spare, lent_bytes=spare, n_ubatch=n_ubatch
    )
    known = [tokens(1200, seed=100), tokens(900, seed=101)]
    running: dict[int, tuple[np.ndarray, int]] = {}
    for _ in range(60):
        base = known[rng.integers(len(known))]
        prompt = join(base[: rng.integers(1, len(base) + 1)], tokens(rng.integers(1, 200), rng.integers(99)))
        n_predict = int(rng.integers(1, 12))
        known = [*known[-12:], prompt[:1200]]
        running[bench.submit(prompt[:1400], n_predict, store=bool(rng.random() < 0.8))] = (
            prompt[:1400],
            n_predict,
        )
        for _ in range(rng.integers(1, 14)):
            bench.turn()
            if store is not None and rng.random() < 0.3:
                store.answer()
            if store is not None and rng.random() < 0.2:
                store.write()
    bench.run()
    while store is not None and store.answer():
        bench.run()
    for request_id, (prompt, n_predict) in running.items():
        assert bench.result(request_id).ids == expected(prompt, n_predict)
    bench.check_references()
    assert bench.core.pool.n_bytes <= needed + spare
