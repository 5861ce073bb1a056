"""Conversations edited, cancelled, saved, forgotten and resent in any order answer as if nothing were kept.

And what is kept, in points and sequences, is what its tokens leave.
"""

import mmap
from dataclasses import replace

import numpy as np
import pytest

from runtime.engine import EraseSlot, InstallPrefix, PrefixInstalled, PrefixSnapshot, SlotCaptured, StopReason
from runtime.engine.commands import Cancel, CaptureSlot, ForgetText
from runtime.errors import StepFailed
from runtime.runner import Run
from tests.runtime.engine.harness import GREEDY, Bench, join, node_tokens, tokens
from tests.runtime.engine.ports import DictStore
from tests.runtime.engine.tailed import LAYOUTS, TailedRunner, Truth, expected
from tests.runtime.engine.test_forgetting import render
from tests.runtime.engine.test_tails import policy

ROOTS = (b"", b"other")


class World:
    """Slots, a store and clients that do what the dice say."""

    def __init__(self, kind: str, seed: int) -> None:
        self.layout = LAYOUTS[kind]
        self.truth = Truth(self.layout)
        self.dice = np.random.default_rng(seed)
        self.store = DictStore()
        self.runner = TailedRunner(self.layout)
        self.runner.before_step = self.step
        self.bench = Bench(
            runner=self.runner,
            port=self.store,
            n_slots=3,
            n_ctx=1024,
            n_blocks=int(self.dice.integers(12, 24)),
            checkpoints=policy(interval=int(self.dice.integers(40, 200)), max_count=6),
            point_bytes=int(self.dice.integers(1_000, 20_000)),
            pool_bytes=int(self.dice.integers(18, 40)) * mmap.PAGESIZE,
        )
        self.store.post = self.bench.post
        self.told: list[np.ndarray] = [tokens(300, seed)]
        self.asked: dict[int, tuple[np.ndarray, int]] = {}
        self.cancelled: set[int] = set()
        self.installs: dict[int, np.ndarray] = {}
        self.saves: set[int] = set()
        self.saved: list[tuple[PrefixSnapshot, list[bytes]]] = []
        self.tickets = iter(range(1_000_000, 1 << 30))

    def chance(self, share: float) -> bool:
        return bool(self.dice.random() < share)

    def some_tokens(self) -> np.ndarray:
        base = self.told[self.dice.integers(len(self.told))]
        keep = len(base) if self.chance(0.4) else int(self.dice.integers(1, len(base) + 1))
        more = tokens(int(self.dice.integers(0, 80)), int(self.dice.integers(4)))
        return join(base[:keep], more)[:900]

    def ask(self) -> None:
        prompt, n = self.some_tokens(), int(self.dice.integers(0, 12))
        turns = tuple(self.dice.integers(0, len(prompt), 3).tolist())
        fields = {"turn_starts": turns, "store": self.chance(0.8), "cache_prompt": self.chance(0.9)}
        if self.chance(0.3):
            # changes logits, and no answer
            fields["sampling"] = replace(GREEDY, ignore_eos=True)
        root = ROOTS[self.chance(0.2)]
        request = self.bench.submit(prompt, n, root=root, **fields)
        self.asked[request] = (prompt, n)

    def command(self) -> None:
        ticket, slot = next(self.tickets), int(self.dice.integers(3))
        match int(self.dice.integers(4)):
            case 0:
                self.saves.add(ticket)
                self.bench.post(CaptureSlot(ticket, slot))
            case 1:
                self.bench.post(EraseSlot(ticket, slot))
            case 2:
                self.installs[ticket] = self.some_tokens()
                self.bench.post(InstallPrefix(ticket, slot, b"", self.installs[ticket]))
            case 3:
                text = render(self.some_tokens()[: int(self.dice.integers(1, 300))])
                self.bench.post(ForgetText(ticket, b"", text, render))

    def step(self, runs: list[Run]) -> None:
        if self.chance(0.01):
            raise RuntimeError("the model failed")

    def turn(self) -> None:
        if self.chance(0.15):
            self.runner.cancel()
        if self.chance(0.7):
            self.store.answer()
        if self.chance(0.2):
            self.store.write()
        if self.chance(0.05):
            self.bench.now += 11
        if self.chance(0.05):
            self.command()
        if self.asked and self.chance(0.05):
            request = int(self.dice.choice(list(self.asked)))
            self.cancelled.add(request)
            self.bench.post(Cancel(request))
        if self.saved and self.chance(0.1):
            self.saved.pop(0)[0].release()
        self.bench.turn()
        self.keep_saves()

    def keep_saves(self) -> None:
        for event in self.bench.events:
            if isinstance(event, SlotCaptured) and event.ticket in self.saves:
                self.saves.remove(event.ticket)
                if event.snapshot is not None:
                    self.saved.append((event.snapshot, lent_bytes(event.snapshot)))

    def settle(self) -> None:
        self.bench.run()
        while self.store.answer():
            self.bench.run()
        self.keep_saves()

    def check(self) -> None:
        for request, (prompt, n) in self.asked.items():
            result = self.bench.result(request)
            if result.finished is not None and result.finished.reason is StopReason.CANCELLED:
                assert request in self.cancelled
                assert result.ids == expected(self.layout, prompt, len(result.ids))
            elif result.error is not None:
                assert isinstance(result.error, StepFailed)
                assert result.ids == expected(self.layout, prompt, len(result.ids))
            else:
                assert result.ids == expected(self.layout, prompt, n)
                self.told.append(join(prompt, result.ids))
        self.asked.clear()
        for ticket in self.installs:
            answer = self.bench.answer(ticket)
            assert isinstance(answer, PrefixInstalled) and answer.error is None
        self.installs.clear()
        self.bench.check_references(lent=True)
        self.check_memory()

    def check_memory(self) -> None:
        core = self.bench.core
        for node in core.index.nodes():
            for point in node.points.values():
                self.truth.check(point, node_tokens(node))
        for slot in core.slots:
            sequence = slot.sequence
            for point in sequence.own_points:
                self.truth.check(point, sequence.tokens)
            run = Run(sequence.tokens[:0], sequence.n_tokens, sequence.tables, "last", sequence.tail)
            read = self.runner._read(run, sequence.n_tokens, of_step=False)
            assert np.array_equal(read.logits(), self.truth.growth(sequence.tokens).logits())
        for snapshot, seen in self.saved:
            assert lent_bytes(snapshot) == seen
        points = {id(p): p for node in core.index.nodes() for p in node.points.values()}
        assert core.index.point_bytes == sum(p.n_bytes for p in points.values())
        tails = core.pool.tails
        assert tails is not None
        assert tails.n_rings <= 3


def lent_bytes(snapshot: PrefixSnapshot) -> list[bytes]:
    segments = [segment.tobytes() for block in snapshot.blocks for segment in block.segments]
    return segments + [part.tobytes() for point in snapshot.points for part in point.parts]


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
    assert world.runner.n_given_up
