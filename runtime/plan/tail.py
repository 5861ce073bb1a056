"""The tail of a model's sequences while its plan is written: layers add to it in the order of the plan."""

from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from runtime.memory.tail import RingLayout, StateLayout, TailLayout, aligned


@dataclass(slots=True)
class Ring:
    """Rows of the last positions, see `runtime.memory.tail.RingLayout`. Layers are added in plan order."""

    name: str
    period: int
    back: int
    row_bytes: int = 0
    fields: list[str] = field(default_factory=list)
    patches: list[tuple[npt.NDArray[np.int64], int, int, int]] = field(default_factory=list)

    def add(self, kind: str, n_bytes: int) -> int:
        """The offset in each row of `n_bytes` of one more layer; `kind` names their content."""
        offset = self.row_bytes
        self.row_bytes += aligned(n_bytes)
        self.fields.append(f"{kind}{n_bytes}")
        return offset

    def patch(self, words: npt.NDArray[np.int64], base: int, stride: int, capacity: int) -> None:
        """At the plan's end, write into `words` at these indices: the ring's offset after the run's address
        of rings, bytes from row to row, and the number of rows."""
        self.patches.append((words, base, stride, capacity))


class TailPlan:
    """Collects states and rings; `layout` ends it."""

    def __init__(self, n_ubatch: int) -> None:
        self._n_ubatch = n_ubatch
        self._states: list[str] = []
        self._state_bytes = 0
        self._rings: list[Ring] = []

    def state(self, kind: str, n_floats: int) -> int:
        """The offset, in both states of a run, of `n_floats` of f32 of one more layer."""
        offset = self._state_bytes
        self._state_bytes += aligned(4 * n_floats)
        self._states.append(f"{kind}{n_floats}")
        return offset

    def ring(self, name: str, *, period: int = 1, back: int = 0) -> Ring:
        """A ring whose layers need `back` rows before the last multiple of `period`, and those since."""
        ring = Ring(name, period, back)
        self._rings.append(ring)
        return ring

    def layout(self) -> TailLayout | None:
        """None for a model without a tail."""
        if not self._states and not self._rings:
            return None
        state = StateLayout(f"state-v1:{_runs(self._states)}", self._state_bytes) if self._states else None
        layout = TailLayout(state, tuple(self._ring(ring) for ring in self._rings))
        for ring, made, base in zip(self._rings, layout.rings, layout.ring_offsets, strict=False):
            for words, *indices in ring.patches:
                words[indices] = [base, made.row_bytes, made.capacity]
        return layout

    def _ring(self, ring: Ring) -> RingLayout:
        needed = ring.back + ring.period + self._n_ubatch
        layout_id = f"ring-v1:{_runs(ring.fields)}:p{ring.period}b{ring.back}"
        return RingLayout(ring.name, layout_id, ring.row_bytes, needed, ring.period, ring.back)


def _runs(kinds: list[str]) -> str:
    return "+".join(f"{len(list(same))}x{kind}" for kind, same in groupby(kinds))
