"""Capture, install and erase: what /slots and named saves are made of."""

import pytest

from runtime.engine import CacheSource, CaptureSlot, EraseSlot, InstallPrefix
from tests.runtime.engine.harness import Bench, expected, join, tokens
from tests.runtime.engine.ports import DictStore
from tests.runtime.engine.test_store_restore import ask, filled, settle, with_store


def test_a_captured_slot_is_everything_it_remembers() -> None:
    bench = Bench()
    result = bench.ask(tokens(300), 10, id_slot=1)
    bench.post(CaptureSlot(50, 1))
    bench.run()
    snapshot = bench.answer(50).snapshot
    assert snapshot.tokens.tolist() == tokens(300).tolist() + result.ids[:-1]
    assert [(b.index, b.n_rows) for b in snapshot.blocks] == [(0, 256), (1, 53)]
    assert [len(s) for s in snapshot.blocks[1].segments] == [8 * 64, 4 * 64]
    assert bench.core.pool.n_leases == 2
    snapshot.release()
    assert bench.core.pool.n_leases == 0


def test_commands_wait_until_their_slot_is_idle() -> None:
    bench = Bench(n_slots=1)
    request_id = bench.submit(tokens(100), 10)
    bench.turn()
    bench.post(EraseSlot(50, 0))
    bench.post(CaptureSlot(51, 0))
    follower = bench.submit(tokens(100), 3)
    bench.run()
    assert bench.result(request_id).ids == expected(tokens(100), 10)
    assert bench.answer(50).n_erased == 109
    assert str(bench.answer(51).error) == "slot 0 is empty"
    assert bench.result(follower).n_cached == 0, "commands come before requests that came later"


def test_erase_forgets_what_only_the_slot_needs() -> None:
    bench = Bench(n_slots=2)
    shared = tokens(512)
    bench.ask(join(shared, tokens(80, seed=1)), 2, id_slot=0)
    bench.ask(join(shared, tokens(90, seed=2)), 2, id_slot=1)
    bench.post(EraseSlot(50, 0))
    bench.run()
    assert bench.answer(50).n_erased == 593
    bench.check_references()
    assert bench.ask(join(shared, tokens(80, seed=1)), 2).n_cached == 512
    assert bench.ask(join(shared, tokens(90, seed=2)), 2).n_cached == 601


def test_erasing_a_private_slot_forgets_nothing_public() -> None:
    bench = Bench(n_slots=2)
    bench.ask(tokens(300), 2, id_slot=0)
    bench.ask(tokens(300), 2, id_slot=1, store=False)
    bench.ask(tokens(20, seed=1), 2, id_slot=0)
    bench.post(EraseSlot(50, 1))
    bench.run()
    assert bench.ask(tokens(300), 2).n_cached == 299


def test_an_erased_slot_begins_anew() -> None:
    bench = Bench(n_slots=1)
    bench.ask(tokens(300), 2)
    bench.post(EraseSlot(50, 0))
    assert bench.ask(tokens(300), 4).n_cached == 0
    assert bench.core.pool.n_used == 2


@pytest.mark.parametrize("id_slot", [-1, 2, 99])
def test_a_slot_that_does_not_exist_is_an_error(id_slot: int) -> None:
    bench = Bench(n_slots=2)
    bench.post(CaptureSlot(1, id_slot))
    bench.post(EraseSlot(2, id_slot))
    bench.post(InstallPrefix(3, id_slot, b"", tokens(5)))
    for ticket in (1, 2, 3):
        assert str(bench.answer(ticket).error) == f"there is no slot {id_slot}, slots are numbered 0..1"


def test_a_prefix_is_installed_whole_from_ram_and_continued() -> None:
    bench = Bench(n_slots=2)
    first = bench.ask(tokens(300), 10, id_slot=0)
    saved = join(tokens(300), first.ids[:-1])
    bench.post(InstallPrefix(50, 1, b"", saved))
    bench.run()
    answer = bench.answer(50)
    assert (answer.n_tokens, answer.source, answer.error) == (309, CacheSource.RAM, None)
    assert bench.core.slots[1].sequence.tokens.tolist() == saved.tolist()
    result = bench.ask(join(saved, [1, 2, 3]), 5, id_slot=1)
    assert result.n_cached == 309
    assert result.ids == expected(join(saved, [1, 2, 3]), 5)
    bench.check_references()


@pytest.mark.parametrize("n", [1, 256, 300, 512])
def test_a_prefix_is_installed_whole_from_the_store(n: int) -> None:
    bench, store = with_store(filled(tokens(600)))
    bench.post(InstallPrefix(50, 1, b"", tokens(600)[:n]))
    settle(bench, store)
    answer = bench.answer(50)
    assert (answer.n_tokens, answer.source) == (n, CacheSource.STORE)
    result = ask(bench, store, join(tokens(600)[:n], [9, 9]), 5, id_slot=1)
    assert result.ids == expected(join(tokens(600)[:n], [9, 9]), 5)
    assert result.n_cached == n
    bench.check_references()


def test_a_slot_is_untouched_when_nothing_can_be_installed() -> None:
    bench, store = with_store(DictStore())
    ask(bench, store, tokens(100), 5, id_slot=0)
    before = bench.core.slots[0].sequence.tokens.tolist()
    bench.post(InstallPrefix(50, 0, b"other", tokens(400, seed=3)))
    settle(bench, store)
    answer = bench.answer(50)
    assert (answer.n_tokens, answer.error) == (0, None)
    assert bench.core.slots[0].sequence.tokens.tolist() == before
    assert ask(bench, store, tokens(100), 5, id_slot=0).n_cached == 99
    bench.check_references()


def test_a_damaged_save_leaves_the_slot_untouched_and_its_next_answer_right() -> None:
    store = filled(tokens(600))
    store.cut_loads_to = 0
    bench, store = with_store(store)
    ask(bench, store, tokens(100, seed=2), 5, id_slot=0)
    bench.post(InstallPrefix(50, 0, b"", tokens(600)))
    settle(bench, store)
    assert bench.answer(50).n_tokens == 0
    result = ask(bench, store, tokens(100, seed=2), 5, id_slot=0)
    assert (result.n_cached, result.ids) == (99, expected(tokens(100, seed=2), 5))
    bench.check_references()


def test_a_prefix_beyond_the_context_is_refused() -> None:
    bench = Bench(n_ctx=512)
    bench.post(InstallPrefix(50, 0, b"", tokens(513)))
    bench.run()
    assert "exceeds the available context size" in str(bench.answer(50).error)
    bench.post(InstallPrefix(51, 0, b"", tokens(0)))
    bench.run()
    assert bench.answer(51).n_tokens == 0


def test_an_install_that_the_store_never_answers_is_given_up() -> None:
    bench, _ = with_store(filled(tokens(600)))
    bench.post(InstallPrefix(50, 0, b"", tokens(600)))
    bench.run()
    bench.now = 11.0
    bench.run()
    assert bench.answer(50).n_tokens == 0
    assert "did not answer in time" in bench.answer(50).reason
    assert bench.core.slots[0].idle
