"""What is lent to the store holds the tokens it is lent for and nothing else."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from runtime.engine import CaptureSlot, PrefixSnapshot, SlotCaptured
from runtime.engine.commands import Cancel
from runtime.errors import PoolExhausted
from runtime.memory.layout import BLOCK, TILE
from tests.runtime.engine.fakes import ROW_BYTES, Oracle
from tests.runtime.engine.harness import Bench, expected, join, tokens
from tests.runtime.engine.ports import DictStore


def segment(rows: bytes, n_rows: int, size: int) -> bytes:
    """Rows as whole tiles, each of which holds byte i of its 16 positions side by side."""
    n_tiles = -(-n_rows // TILE)
    padded = np.frombuffer(rows.ljust(n_tiles * TILE * size, b"\0"), np.uint8)
    return padded.reshape(n_tiles, TILE, size).transpose(0, 2, 1).tobytes()


def check(snapshot: PrefixSnapshot) -> None:
    """Every byte is that of the snapshot's tokens, or zero."""
    oracle = Oracle(snapshot.tokens.tolist())
    for block in snapshot.blocks:
        for rows, size, lent in zip(oracle.rows, ROW_BYTES, block.segments, strict=True):
            at = block.index * BLOCK * size
            own = bytes(rows[at : at + block.n_rows * size])
            assert lent.tobytes() == segment(own, block.n_rows, size)


def capture(bench: Bench, id_slot: int = 0) -> PrefixSnapshot:
    ticket = 10_000 + len(bench.events)
    bench.post(CaptureSlot(ticket, id_slot))
    bench.run()
    answer = bench.answer(ticket)
    assert isinstance(answer, SlotCaptured) and answer.snapshot is not None, answer
    return answer.snapshot


def branch(trunk: Sequence[int] | np.ndarray, n: int, seed: int = 7) -> np.ndarray:
    """The trunk, and from token 281 on another way."""
    return join(trunk[:281], [(int(trunk[281]) + 1) % 256], tokens(n - 282, seed=seed))


@pytest.mark.parametrize("n_slots", [1, 2])
@pytest.mark.parametrize("n", [282, 286, 287, 288, 300])
def test_a_branch_is_lent_without_the_rows_of_what_it_parted_from(n: int, n_slots: int) -> None:
    bench = Bench(n_slots=n_slots)
    trunk = tokens(330)
    bench.ask(trunk, 0, id_slot=0)
    result = bench.ask(branch(trunk, n), 0, id_slot=n_slots - 1)
    assert result.n_cached == 281
    check(capture(bench, n_slots - 1))
    assert bench.ask(trunk, 5).ids == expected(trunk, 5), "the rows of the other are still there"
    bench.check_references()


@pytest.mark.parametrize("private", [False, True])
def test_what_a_slot_remembered_before_does_not_stay_in_its_last_tile(private: bool) -> None:
    bench = Bench(n_slots=1)
    trunk = tokens(330)
    bench.ask(trunk, 0, store=not private)
    assert bench.ask(trunk[:300], 1).n_cached == 299
    check(capture(bench))


def test_a_request_that_ends_before_its_first_step_lends_nothing_of_the_other() -> None:
    """It shares the block in which the other, which still lives, has rows behind its own."""
    store = DictStore()
    bench = Bench(port=store)
    store.post = bench.post
    trunk = tokens(330)
    bench.ask(trunk, 0, id_slot=0)
    store.answer()
    bench.run()
    other = bench.submit(branch(trunk, 400), 5, id_slot=1)
    bench.run()
    bench.post(Cancel(other))
    bench.run()
    last = store.offers[-1]
    assert len(last.tokens) == 281
    check(last)
    store.write()
    assert bench.ask(trunk, 5).ids == expected(trunk, 5)
    bench.check_references()


def test_what_a_step_that_was_given_up_left_behind_is_not_lent() -> None:
    bench = Bench(n_ubatch=300)
    bench.runner.before_step = lambda runs: bench.runner.cancel() if runs[0].start == 300 else None
    request_id = bench.submit(tokens(700))
    bench.turn()
    bench.turn()
    assert bench.runner.n_given_up == 1
    bench.post(Cancel(request_id))
    snapshot = capture(bench)
    assert len(snapshot.tokens) == 300
    check(snapshot)


def test_a_prefix_that_is_lent_already_is_lent_again_as_it_is() -> None:
    bench = Bench()
    bench.ask(tokens(300), 0)
    first, used = capture(bench), bench.core.pool.n_used
    again = capture(bench)
    assert bench.core.pool.n_used == used
    check(again)
    assert [s.ctypes.data for s in first.blocks[1].segments] == [
        s.ctypes.data for s in again.blocks[1].segments
    ]


def full_pool(n: int) -> Bench:
    """Slot 0 remembers `n` tokens in a block that slot 1 shares; no block is free or can be freed."""
    bench = Bench(n_slots=3, n_blocks=3)
    trunk = tokens(250)
    bench.ask(trunk, 0, id_slot=1)
    request_id = bench.submit(join(trunk[:n], [(int(trunk[n]) + 1) % 256]), 0, id_slot=0)
    bench.core.admit()
    bench.post(Cancel(request_id))
    lent = bench.core.pool.lease(tuple((bench.core.pool.allocate(), 1) for _ in range(2)))
    assert lent.rows
    return bench


def test_without_a_block_for_a_copy_the_whole_tiles_are_lent() -> None:
    bench = full_pool(100)
    snapshot = capture(bench)
    assert len(snapshot.tokens) == 96
    check(snapshot)


def test_without_a_block_for_a_copy_a_single_tile_cannot_be_lent() -> None:
    bench = full_pool(10)
    bench.post(CaptureSlot(5, 0))
    bench.run()
    answer = bench.answer(5)
    assert isinstance(answer, SlotCaptured) and answer.snapshot is None
    assert isinstance(answer.error, PoolExhausted)


def seconds_of_offers(prompt: np.ndarray, seconds_per_step: float) -> list[tuple[float, str, int]]:
    """When a prompt's beginnings were offered while steps of 64 tokens took so long: (time, why, tokens)."""
    store = DictStore()
    bench = Bench(port=store, n_ubatch=64, n_ctx=16_384, n_blocks=80, offer_min_tokens=1)
    store.post = bench.post
    bench.submit(prompt, 0)
    bench.turn()
    store.answer()
    offers = []
    while bench.turn():
        offers += [(bench.now, why, n) for why, n in store.seen]
        store.seen.clear()
        store.write()
        bench.now += seconds_per_step
    return offers


def test_what_is_read_of_a_prompt_is_lent_as_reading_goes_on() -> None:
    offers = seconds_of_offers(tokens(2000), 0.1)
    read = [(now, n) for now, why, n in offers if why == "interval"]
    assert read[0][0] <= 0.6
    for (a, n), (b, more) in pairwise(read):
        assert 0.5 <= b - a < 0.9  # half a second, and a block of four steps may have just begun
        assert more % BLOCK == 0 and more >= n + BLOCK
    assert [n for _, why, n in offers if why != "interval"] == [1792, 2000]


def test_a_prompt_that_is_read_at_once_is_lent_when_it_is_read() -> None:
    assert {why for _, why, _ in seconds_of_offers(tokens(2000), 0.001)} == {"prompt_end", "release"}


def test_of_a_long_prompt_a_share_is_read_before_it_is_lent_again() -> None:
    read = [n for _, why, n in seconds_of_offers(tokens(15_000), 60.0) if why == "interval"]
    assert {b - a for a, b in pairwise(read) if b <= 8192} == {256}
    assert {b - a for a, b in pairwise(read) if b > 8192 + 256} == {512}
