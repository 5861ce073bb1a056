"""What becomes of offers: the lender hears whether they were written before it has them back."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import structlog.testing
import trio

from daemon.memory_bridge import MemoryBridge
from daemon.memory_port import StorePort
from daemon.saves import EmptySlot, SavesNotYet, SavesUnavailable
from runtime.engine.commands import SlotCaptured
from runtime.engine.port import BlockViews, LookupDone, PrefixSnapshot
from runtime.errors import InvalidRequest
from runtime.memory.layout import TILE, GroupLayout, MemoryLayout
from store import ManifestInfo, Match, Outcome, SaveAs, WriteRequest, WriteResult

LAYOUT = MemoryLayout((GroupLayout("rows", "rows", TILE),))


def bridge(outcome: Outcome) -> MemoryBridge:
    """Over a store with which every write has that outcome."""

    def settle(request: WriteRequest) -> None:
        request.on_done(WriteResult(outcome))

    loaded = SimpleNamespace(runner=SimpleNamespace(layout=LAYOUT))
    return MemoryBridge(cast(Any, SimpleNamespace(offer=settle)), cast(Any, loaded), cast(Any, None), "test")


def snapshot(told: list[str]) -> PrefixSnapshot:
    rows = BlockViews(0, TILE, (np.zeros(TILE, np.uint8),))
    return PrefixSnapshot(
        b"",
        np.zeros(TILE, np.int32),
        (rows,),
        "test",
        lambda: told.append("release"),
        lost=lambda: told.append("lost"),
    )


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.WRITTEN, ["release"]),
        (Outcome.DROPPED, ["lost", "release"]),
        (Outcome.FAILED, ["lost", "release"]),
    ],
)
def test_what_was_not_written_is_lost_before_it_is_released(outcome: Outcome, expected: list[str]) -> None:
    told: list[str] = []
    made = bridge(outcome)
    made._port.root = b"root"
    made._port.offer(snapshot(told))
    assert told == expected


def test_the_oldest_offer_is_lost_when_too_many_wait_for_the_model_to_be_identified() -> None:
    told: list[list[str]] = [[] for _ in range(65)]
    made = bridge(Outcome.WRITTEN)
    for one in told:
        made._port.offer(snapshot(one))
    assert told == [["lost", "release"], *([[]] * 64)]


def test_a_look_up_that_was_foreseen_is_answered_at_once_and_only_once() -> None:
    posted: list[Any] = []
    late: list[Any] = []
    client = SimpleNamespace(engine=SimpleNamespace(post=posted.append))
    store = SimpleNamespace(post=lambda call: late.append(call) or True)
    match = Match(3, (), "all of it is stored")
    loaded = SimpleNamespace(runner=SimpleNamespace(layout=LAYOUT))
    port = StorePort(cast(Any, store), cast(Any, loaded), cast(Any, client))
    port.root = b"root"
    tokens = np.arange(3, dtype=np.int32)
    port.foresee(tokens, match)
    port.lookup(1, b"root", tokens.copy(), 0)
    assert posted == [LookupDone(1, 3, "all of it is stored")]
    port.lookup(2, b"root", tokens, 0)
    port.foresee(tokens, match)
    port.lookup(3, b"root", tokens[:2], 0)
    assert len(posted) == 1 and len(late) == 2


def test_a_model_that_is_not_identified_yet_is_worth_another_try_and_one_that_cannot_be_is_not() -> None:
    loaded = SimpleNamespace(runner=SimpleNamespace(layout=LAYOUT))
    made = MemoryBridge(cast(Any, None), cast(Any, loaded), cast(Any, None), "test")
    with pytest.raises(SavesNotYet, match="try again in a moment"):
        trio.run(made.save, 0, "a")
    made._port.trouble = "the model cannot be identified: it is gone"
    with pytest.raises(SavesUnavailable, match="it is gone") as raised:
        trio.run(made.save, 0, "a")
    assert not isinstance(raised.value, SavesNotYet)


def test_the_log_says_once_where_a_disk_was_asked_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silences = [0.0, 9.0, 11.0, 12.0, 0.0, 61.0]
    store = SimpleNamespace(stack=lambda: "in commit")
    loaded = SimpleNamespace(runner=SimpleNamespace(layout=LAYOUT))
    made = MemoryBridge(cast(Any, store), cast(Any, loaded), cast(Any, SimpleNamespace()), "test")
    log = structlog.testing.CapturingLogger()  # another test may have logs of this level thrown away
    monkeypatch.setattr("daemon.memory_bridge.logger", lambda: log)
    for store.silence_s in silences:
        made._watch_disk()
    assert log.calls == [
        ("warning", ("the disk does not answer",), {"seconds": 11, "stack": "in commit"}),
        ("warning", ("the disk does not answer",), {"seconds": 61, "stack": "in commit"}),
    ]


def save_from(captures: list[SlotCaptured], refusals: int) -> Any:
    """The result of a save that is refused its name so often: its blocks were forgotten in between."""
    left = [refusals]

    async def ask(make: Any) -> SlotCaptured:
        return captures.pop(0)

    def settle(request: WriteRequest) -> None:
        assert request.save_as == SaveAs("name", model="test")
        if left[0]:
            left[0] -= 1
            request.on_done(WriteResult(Outcome.WRITTEN, TILE, reason="only 8 of 16 tokens are stored"))
        else:
            info = ManifestInfo("name", b"", b"", TILE, TILE, 0, "", "test", 0)
            request.on_done(WriteResult(Outcome.WRITTEN, TILE, saved=info))

    store = SimpleNamespace(offer=settle)
    loaded = SimpleNamespace(runner=SimpleNamespace(layout=LAYOUT))
    made = MemoryBridge(cast(Any, store), cast(Any, loaded), cast(Any, SimpleNamespace(ask=ask)), "test")
    made._port.root = b"root"
    return trio.run(made.save, 0, "name")


def captured(told: list[str]) -> SlotCaptured:
    return SlotCaptured(1, snapshot(told))


def test_a_save_whose_text_was_forgotten_meanwhile_is_written_again() -> None:
    told: list[str] = []
    assert save_from([captured(told), captured(told)], refusals=1).n_tokens == TILE
    assert told == ["release", "release"]


def test_a_save_whose_slot_was_forgotten_too_says_that_it_is_empty() -> None:
    empty = SlotCaptured(1, None, InvalidRequest("slot 0 is empty"))
    with pytest.raises(EmptySlot, match="slot 0 is empty"):
        save_from([captured([]), empty], refusals=1)


def test_a_save_that_is_refused_again_and_again_says_why() -> None:
    with pytest.raises(SavesUnavailable, match="only 8 of 16 tokens are stored"):
        save_from([captured([]) for _ in range(3)], refusals=3)
