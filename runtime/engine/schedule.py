"""Who gets rows in the next step, and which slot a request gets: pure decisions."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.memory.layout import TILE


@dataclass(frozen=True, slots=True)
class Demand:
    """A running slot. `n_prefill` prompt tokens are left to evaluate; 0 means that it decodes one token.

    `arrival` orders requests by age, `served` is the last step in which the slot had rows.
    """

    id_slot: int
    n_prefill: int
    arrival: int
    served: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """`n_rows` rows of the next step for one slot."""

    id_slot: int
    n_rows: int


def plan_step(demands: Sequence[Demand], n_ubatch: int, prefill_limit: int) -> list[Share]:
    """Divide at most `n_ubatch` rows: first the decodes, then prefill chunks.

    While anybody decodes, prefill gets `prefill_limit` rows in total, but at least one. Prefilling slots
    get equal parts and the oldest what the others leave, so a short prompt does not wait for a long one to
    end. Where even the decodes do not fit, those that waited the longest come first.
    """
    decodes = sorted((d for d in demands if not d.n_prefill), key=lambda d: (d.served, d.arrival))[:n_ubatch]
    shares = [Share(d.id_slot, 1) for d in decodes]
    prefills = sorted((d for d in demands if d.n_prefill), key=lambda d: d.arrival)
    budget = n_ubatch - len(decodes)
    if decodes:
        budget = min(budget, max(1, prefill_limit))
    if not prefills or budget <= 0:
        return shares
    if budget < len(prefills):
        prefills = sorted(prefills, key=lambda d: (d.served, d.arrival))[:budget]
    return shares + _divide(prefills, budget)


def _divide(prefills: list[Demand], budget: int) -> list[Share]:
    part = budget // len(prefills)
    rows = [min(d.n_prefill, part) for d in prefills]
    rest = budget - sum(rows)
    for i, demand in enumerate(prefills):
        more = min(rest, demand.n_prefill - rows[i])
        rows[i] += more
        rest -= more
    return [Share(d.id_slot, n) for d, n in zip(prefills, rows, strict=True)]


class Pace:
    """How many prefill rows fit into a time, from the steps measured so far.

    A step costs about a base, which is reading the weights, and something for each row. Steps of a few rows
    show the base, large ones the rest; without the base, small prefill chunks would look dear and stay small.
    """

    def __init__(self, budget_ms: float) -> None:
        self.budget_ms = budget_ms
        self._base_ms = 0.0
        self._row_ms = 0.0

    def measured(self, n_rows: int, ms: float) -> None:
        """A step of `n_rows` rows took `ms`."""
        if n_rows < TILE:
            self._base_ms = _smooth(self._base_ms, ms)
        else:
            self._row_ms = _smooth(self._row_ms, max(ms - self._base_ms, 0.1 * ms) / n_rows)

    def rows(self) -> int:
        """Prefill rows for a step that others wait for: whole tiles, at least one."""
        if not self._row_ms:
            return TILE
        return max(TILE, int((self.budget_ms - self._base_ms) / self._row_ms) // TILE * TILE)


def _smooth(average: float, value: float) -> float:
    return 0.75 * average + 0.25 * value if average else value


@dataclass(frozen=True, slots=True)
class SlotView:
    """What slot choice looks at; `similarity` is the share of the prompt that the slot remembers."""

    id: int
    idle: bool
    similarity: float
    last_used: int


def choose_slot(slots: Sequence[SlotView], requested: int, threshold: float) -> int | None:
    """The id of the slot for a request, None if it has to wait.

    A requested slot (-1: any) is waited for. Else the idle slot with the greatest similarity above
    `threshold` (0 or less: similarity does not matter), else the idle slot that was unused the longest.
    """
    if requested >= 0:
        return next((s.id for s in slots if s.id == requested and s.idle), None)
    idle = [s for s in slots if s.idle]
    if not idle:
        return None
    best = max(idle, key=lambda s: s.similarity)
    if threshold > 0 and best.similarity > threshold:
        return best.id
    return min(idle, key=lambda s: s.last_used).id
