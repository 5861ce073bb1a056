"""Where sequences of a model with a tail leave points, and which of them stay."""

from dataclasses import replace

from runtime.engine.config import EngineConfig
from runtime.engine.resume import CheckpointState, Eviction, next_checkpoint, should_checkpoint, surplus
from runtime.engine.slot import Slot, Task
from runtime.memory.node import Node
from runtime.memory.points import Point
from runtime.memory.prefix import PrefixIndex
from runtime.memory.sequence import BlockSequence
from runtime.memory.tail import TailLayout


class Checkpoints:
    """Cuts prefill where points are due, captures them, and keeps their number and bytes within bounds.

    For a model without a tail it does nothing.
    """

    def __init__(self, config: EngineConfig, index: PrefixIndex, layout: TailLayout | None) -> None:
        self._index = index
        self._budget = config.point_bytes
        self._wanted = layout is not None
        period = max((ring.period for ring in layout.rings), default=1) if layout is not None else 1
        self._policy = replace(config.checkpoints, alignment=period)

    def cut(self, slot: Slot, n_rows: int) -> int:
        """How many of the next `n_rows` of the prompt to evaluate before a point is due."""
        if not self._wanted:
            return n_rows
        n = slot.sequence.n_tokens
        due = next_checkpoint(n, _state(slot), self._policy)
        return n_rows if due is None else min(n_rows, due - n)

    def passed(self, slot: Slot, slots: list[Slot], releasing: bool = False) -> None:
        """The slot's sequence has come to where it is now: capture a point if one is due."""
        sequence = slot.sequence
        if not self._wanted or not should_checkpoint(
            sequence.n_tokens, _state(slot, releasing), self._policy
        ):
            return
        task = slot.task
        assert task is not None
        n_prompt = len(task.request.prompt)
        asked_again = releasing or sequence.n_tokens == n_prompt
        sequence.capture(task.logits_after(sequence.n_tokens) if asked_again else None)
        self._thin_sequence(sequence, n_prompt)
        self.fit(slots)

    def prepare(self) -> bool:
        """Get memory for the next point: a millisecond's work at most; False when nothing is left to do."""
        tails = self._index.pool.tails
        return tails is not None and self._policy.max_count > 0 and tails.prepare()

    def fit(self, slots: list[Slot]) -> None:
        """Thin out until all points are within their memory."""
        budget = self._budget
        for slot in slots:
            self._thin_own(slot.sequence)
            budget -= sum(point.n_bytes for point in _alone(slot.sequence))
        thin(self._index, max(0, budget), self._policy.eviction)

    def _thin_sequence(self, sequence: BlockSequence, n_prompt: int) -> None:
        """The present prompt's end stays, for whoever asks for another answer to it."""
        points = [point.n_tokens for point in sequence.points()]
        while len(points) > self._policy.max_count:
            sequence.drop_point(points.pop(surplus(points, self._policy.eviction, n_prompt)))

    def _thin_own(self, sequence: BlockSequence) -> None:
        """A private sequence's points may take the whole budget at most."""
        own = sorted(_alone(sequence), key=lambda point: point.n_tokens)
        n_bytes = sum(point.n_bytes for point in own)
        while n_bytes > self._budget:
            gone = own.pop(surplus([point.n_tokens for point in own], self._policy.eviction))
            sequence.drop_point(gone.n_tokens)
            n_bytes -= gone.n_bytes


def _alone(sequence: BlockSequence) -> list[Point]:
    """Points that take memory for this sequence only."""
    return [point for point in sequence.own_points if not point.n_nodes]


def thin(index: PrefixIndex, budget: int, eviction: Eviction) -> None:
    """Drop points until those of the index take at most `budget` bytes.

    Beginning with the prefix that was unused the longest, each gives half of what lies between its first and
    its last point, until that is enough. When only firsts and lasts are left, the longest unused go whole.
    """
    while index.point_bytes > budget:
        leaves = [node for node in index.nodes() if not node.children]
        if not sum(_thin_path(index, leaf, budget, eviction) for leaf in leaves):
            break
    for node in index.nodes():
        for row in sorted(node.points):
            if index.point_bytes > budget:
                index.drop_point(node, row)


def _thin_path(index: PrefixIndex, leaf: Node, budget: int, eviction: Eviction) -> bool:
    """Returns whether there was anything between the first and the last point.

    The last prompt's end, before the release of its answer, stays the longest of it: it may be asked again.
    """
    places = leaf.points_behind()
    points = [node.points[row] for node, row in places]
    positions = [point.n_tokens for point in points]
    wanted = next((point.n_tokens for point in points[-2:0:-1] if point.logits is not None), 0)
    n_between = len(places) - 2
    for _ in range((n_between + 1) // 2):
        if index.point_bytes <= budget:
            break
        i = surplus(positions, eviction, wanted)
        index.drop_point(*places.pop(i))
        del positions[i]
    return n_between > 0


def _state(slot: Slot, releasing: bool = False) -> CheckpointState:
    task = slot.task
    assert isinstance(task, Task)
    return CheckpointState(slot.sequence.last_point, len(task.request.prompt), task.turns, releasing)
