"""Conversations edited, continued, cancelled and resent in any order answer as if nothing were kept."""

import numpy as np
import pytest

from runtime.engine import StopReason
from runtime.engine.commands import Cancel
from tests.runtime.engine.harness import Bench, join, tokens
from tests.runtime.engine.ports import DictStore
from tests.runtime.engine.tailed import LAYOUTS, TailedRunner, expected
from tests.runtime.engine.test_tails import policy


class World:
    """Slots, a store and clients that do what the dice say."""

    def __init__(self, kind: str, seed: int) -> None:
        self.layout = LAYOUTS[kind]
        self.dice = np.random.default_rng(seed)
        self.store = DictStore()
        self.bench = Bench(
            runner=TailedRunner(self.layout),
            port=self.store,
            n_slots=3,
            n_ctx=1024,
            n_blocks=int(self.dice.integers(12, 24)),
            checkpoints=policy(interval=int(self.dice.integers(40, 200)), max_count=6),
            point_bytes=int(self.dice.integers(1_000, 20_000)),
        )
        self.store.post = self.bench.post
        self.told: list[np.ndarray] = [tokens(300, seed)]
        self.asked: dict[int, tuple[np.ndarray, int]] = {}
        self.cancelled: set[int] = set()

    def chance(self, share: float) -> bool:
        return bool(self.dice.random() < share)

    def ask(self) -> None:
        base = self.told[self.dice.integers(len(self.told))]
        keep = len(base) if self.chance(0.4) else int(self.dice.integers(1, len(base) + 1))
        more = tokens(int(self.dice.integers(0, 80)), int(self.dice.integers(4)))
        prompt, n = join(base[:keep], more)[:900], int(self.dice.integers(0, 12))
        turns = tuple(self.dice.integers(0, len(prompt), 3).tolist())
        request = self.bench.submit(prompt, n, turn_starts=turns, store=self.chance(0.8))
        self.asked[request] = (prompt, n)

    def turn(self) -> None:
        if self.chance(0.15):
            self.bench.runner.cancel()
        if self.chance(0.7):
            self.store.answer()
        if self.chance(0.2):
            self.store.write()
        if self.chance(0.05):
            self.bench.now += 11
        if self.asked and self.chance(0.03):
            request = max(self.asked)
            self.cancelled.add(request)
            self.bench.post(Cancel(request))
        self.bench.turn()

    def settle(self) -> None:
        self.bench.run()
        while self.store.answer():
            self.bench.run()

    def check(self) -> None:
        for request, (prompt, n) in self.asked.items():
            result = self.bench.result(request)
            if result.finished is not None and result.finished.reason is StopReason.CANCELLED:
                assert request in self.cancelled
                assert result.ids == expected(self.layout, prompt, len(result.ids))
            else:
                assert result.ids == expected(self.layout, prompt, n), result.error
                self.told.append(join(prompt, result.ids))
        self.asked.clear()
        self.bench.check_references(lent=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", LAYOUTS)
def test_whatever_happens_answers_are_those_of_a_model_that_keeps_nothing(kind: str, seed: int) -> None:
    world = World(kind, seed)
    for _ in range(6):
        for _ in range(int(world.dice.integers(1, 5))):
            world.ask()
            for _ in range(int(world.dice.integers(0, 12))):
                world.turn()
        world.settle()
        world.check()
    assert world.bench.runner.n_given_up
    index = world.bench.core.index
    points = {id(p): p for node in index.nodes() for p in node.points.values()}
    assert index.point_bytes == sum(p.n_bytes for p in points.values())
    tails = world.bench.core.pool.tails
    assert tails is not None
    assert tails.n_rings <= 3
