"""Forgetting a text in RAM: idle slots, shared blocks, and requests that are still at work on it."""

import numpy as np

from runtime.engine.commands import ForgetText
from tests.runtime.engine.harness import Bench, expected, join, tokens

HEAD, MINE, OTHERS = tokens(300), tokens(300, seed=1), tokens(300, seed=2)


def render(ids: np.ndarray) -> bytes:
    return ids.astype("<u4").tobytes()


def forget(bench: Bench, text: np.ndarray, ticket: int = 500) -> int:
    bench.post(ForgetText(ticket, b"", render(text), render))
    bench.run()
    return bench.answer(ticket).n_blocks


def test_what_begins_with_the_text_goes_and_what_others_share_stays() -> None:
    bench = Bench(n_slots=3)
    bench.ask(join(HEAD, MINE), 2, id_slot=0)
    bench.ask(join(HEAD, MINE, tokens(300, seed=3)), 2, id_slot=1)
    bench.ask(join(HEAD, OTHERS), 2, id_slot=2)
    assert forget(bench, join(HEAD, MINE)) >= 2
    bench.check_references()
    assert [slot.sequence.n_tokens for slot in bench.core.slots] == [0, 0, 601]
    again = bench.ask(join(HEAD, MINE), 4, store=False)
    assert again.n_cached == len(HEAD)
    assert again.ids == expected(join(HEAD, MINE), 4)
    assert bench.ask(join(HEAD, OTHERS), 2).n_cached == 599


def test_the_text_may_end_anywhere_in_a_block() -> None:
    bench = Bench()
    bench.ask(join(HEAD, MINE), 2)
    assert forget(bench, join(HEAD, MINE)[:70]) == 3
    assert bench.ask(join(HEAD, MINE), 2).n_cached == 0


def test_private_slots_forget_as_well() -> None:
    bench = Bench()
    bench.ask(MINE, 2, id_slot=1, store=False)
    forget(bench, MINE[:100])
    assert bench.core.slots[1].sequence.n_tokens == 0


def test_a_running_and_a_waiting_request_with_the_text_are_waited_for() -> None:
    bench = Bench(n_slots=1)
    running = bench.submit(join(MINE, tokens(20, seed=4)), 10)
    waiting = bench.submit(join(MINE, tokens(20, seed=5)), 10)
    bench.turn()
    forget(bench, MINE)
    assert len(bench.result(running).ids) == len(bench.result(waiting).ids) == 10
    assert bench.ask(MINE, 2).n_cached == 0


def test_another_running_request_is_not_waited_for() -> None:
    bench = Bench(n_slots=2)
    bench.ask(MINE, 2, id_slot=0)
    running = bench.submit(OTHERS, 10, id_slot=1)
    bench.turn()
    bench.post(ForgetText(500, b"", render(MINE), render))
    bench.turn()
    assert bench.answer(500).n_blocks == 2
    bench.run()
    assert bench.result(running).ids == expected(OTHERS, 10)


def test_a_text_that_nobody_holds_changes_nothing() -> None:
    bench = Bench()
    bench.ask(HEAD, 2)
    assert forget(bench, MINE) == 0
    assert bench.ask(HEAD, 2).n_cached == 299
