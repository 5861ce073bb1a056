"""What becomes of offers: the lender hears whether they were written before it has them back."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from daemon.memory_bridge import MemoryBridge
from runtime.engine.port import BlockViews, PrefixSnapshot
from runtime.memory.layout import TILE, GroupLayout, MemoryLayout
from store import Outcome, WriteRequest, WriteResult

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
    made._root = b"root"
    made.offer(snapshot(told))
    assert told == expected


def test_the_oldest_offer_is_lost_when_too_many_wait_for_the_model_to_be_identified() -> None:
    told: list[list[str]] = [[] for _ in range(65)]
    made = bridge(Outcome.WRITTEN)
    for one in told:
        made.offer(snapshot(one))
    assert told == [["lost", "release"], *([[]] * 64)]
