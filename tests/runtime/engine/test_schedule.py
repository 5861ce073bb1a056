"""Rows are shared out fairly, and slots chosen as llama.cpp does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine.schedule import Demand, Pace, Share, SlotView, choose_slot, plan_step


def shares(demands: list[Demand], n_ubatch: int = 512, limit: int = 64) -> list[tuple[int, int]]:
    return [(s.id_slot, s.n_rows) for s in plan_step(demands, n_ubatch, limit)]


@pytest.mark.parametrize(
    ("why", "demands", "n_ubatch", "limit", "want"),
    [
        ("nothing to do", [], 512, 64, []),
        ("a prompt alone gets the whole step", [Demand(0, 3000, 1)], 512, 64, [(0, 512)]),
        ("decodes bound prefill", [Demand(0, 999, 1), Demand(1, 0, 2)], 512, 64, [(1, 1), (0, 64)]),
        ("two prompts share", [Demand(0, 3000, 1), Demand(1, 3000, 2)], 512, 64, [(0, 256), (1, 256)]),
        ("a short prompt leaves rest", [Demand(0, 999, 1), Demand(1, 20, 2)], 512, 64, [(0, 492), (1, 20)]),
        ("the oldest gets the odd row", [Demand(2, 90, 1), Demand(1, 90, 2)], 7, 64, [(2, 4), (1, 3)]),
        ("no room for prefill beside decodes", [Demand(0, 0, 1), Demand(1, 0, 2), Demand(2, 9, 3)], 2, 64,
         [(0, 1), (1, 1)]),
        ("decodes take turns", [Demand(0, 0, 1, 5), Demand(1, 0, 2, 4)], 1, 64, [(1, 1)]),
        ("prefill is never starved by pace", [Demand(0, 9, 1), Demand(1, 0, 2)], 512, 0, [(1, 1), (0, 1)]),
        ("prompts take turns", [Demand(0, 9, 1, 3), Demand(1, 9, 2, 2), Demand(2, 9, 3, 1)], 2, 64,
         [(2, 1), (1, 1)]),
    ],
)  # fmt: skip
def test_plan_step(
    why: str, demands: list[Demand], n_ubatch: int, limit: int, want: list[tuple[int, int]]
) -> None:
    assert shares(demands, n_ubatch, limit) == want, why


DEMANDS = st.lists(st.integers(0, 900), max_size=8)


@given(left=DEMANDS, n_ubatch=st.integers(1, 600), limit=st.integers(0, 600))
def test_a_step_is_never_too_large_and_never_wastes_rows(left: list[int], n_ubatch: int, limit: int) -> None:
    demands = [Demand(i, n, i) for i, n in enumerate(left)]
    plan = plan_step(demands, n_ubatch, limit)
    total = sum(s.n_rows for s in plan)
    assert total <= n_ubatch
    assert len({s.id_slot for s in plan}) == len(plan)
    assert all(1 <= s.n_rows <= max(1, left[s.id_slot]) for s in plan)
    n_decodes = sum(n == 0 for n in left)
    prefill = sum(left)
    budget = max(0, n_ubatch - n_decodes)
    if n_decodes:
        budget = min(budget, max(1, limit))
    assert total == min(n_decodes, n_ubatch) + min(budget, prefill)


@given(left=st.lists(st.integers(1, 300), min_size=1, max_size=6), n_ubatch=st.integers(1, 64))
def test_every_slot_gets_on_and_none_waits_longer_than_a_round(left: list[int], n_ubatch: int) -> None:
    remaining = dict(enumerate(left))
    served = dict.fromkeys(remaining, 0)
    step = 0
    while remaining:
        step += 1
        plan: list[Share] = plan_step(
            [Demand(i, n, i, served[i]) for i, n in remaining.items()], n_ubatch, 64
        )
        assert plan
        for share in plan:
            remaining[share.id_slot] -= share.n_rows
            served[share.id_slot] = step
            if not remaining[share.id_slot]:
                del remaining[share.id_slot]
        assert all(step - served[i] <= len(left) for i in remaining)


def test_pace_turns_a_rate_into_whole_tiles() -> None:
    pace = Pace(100.0)
    assert pace.rows() == 16
    pace.measured(1, 50.0)
    assert pace.rows() == 16, "one row does not tell what more would cost"
    pace.measured(512, 512.0 + 50.0)
    assert pace.rows() == 48
    for _ in range(50):
        pace.measured(512, 5120.0)
    assert pace.rows() == 16, "never less than a tile"


@pytest.mark.parametrize(
    ("base", "row", "want"), [(40.0, 1.0, 48), (5.0, 0.1, 944), (0.0, 1.0, 96), (300.0, 9.0, 16)]
)
def test_pace_grows_from_small_chunks_to_what_the_time_allows(base: float, row: float, want: int) -> None:
    pace = Pace(100.0)
    for _ in range(30):
        pace.measured(2, base + 2 * row)
        n = pace.rows() + 1
        pace.measured(n, base + n * row)
    assert pace.rows() == pytest.approx(want, abs=32)
    assert base >= 100 or base + pace.rows() * row <= 105


@pytest.mark.parametrize(
    ("why", "slots", "requested", "want"),
    [
        ("similar enough", [(0, True, 0.05, 1), (1, True, 0.4, 9), (2, True, 0.3, 2)], -1, 1),
        ("not similar enough: least recently used", [(0, True, 0.1, 5), (1, True, 0.05, 3)], -1, 1),
        ("busy slots do not count", [(0, False, 0.9, 5), (1, True, 0.0, 7)], -1, 1),
        ("none is idle", [(0, False, 0.9, 5)], -1, None),
        ("requested and idle", [(0, True, 0.9, 5), (1, True, 0.0, 7)], 1, 1),
        ("requested and busy", [(0, True, 0.9, 5), (1, False, 0.0, 7)], 1, None),
    ],
)
def test_choose_slot(
    why: str, slots: list[tuple[int, bool, float, int]], requested: int, want: int | None
) -> None:
    assert choose_slot([SlotView(*s) for s in slots], requested, 0.1) == want, why


def test_similarity_can_be_turned_off() -> None:
    slots = [SlotView(0, True, 0.9, 5), SlotView(1, True, 0.0, 3)]
    assert choose_slot(slots, -1, 0.0) == 1
