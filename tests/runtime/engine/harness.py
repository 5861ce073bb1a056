"""Drives the engine's core step by step, with a clock that stands still, and the oracle for its answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.engine import (
    EngineConfig,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    MemoryPort,
    Output,
    SamplingParams,
    SlotAnswer,
    Started,
)
from runtime.engine.core import Core, Message
from runtime.engine.sampling import Sampler
from runtime.engine.stepping import Stepper
from runtime.errors import StepCancelled, StepFailed
from runtime.memory.node import Node
from runtime.tokenizers import StreamDetokenizer
from tests.runtime.engine.fakes import EOG, LETTERS, FakeRunner, FakeTokenizer, Oracle
from tests.runtime.engine.ports import DictStore

GREEDY = SamplingParams(temperature=0.0)


def tokens(n: int, seed: int = 0) -> np.ndarray:
    """`n` random tokens."""
    return np.random.default_rng(seed).integers(0, 256, n).astype(np.int32)


def join(*parts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.asarray(part, np.int32) for part in parts])


def node_tokens(node: Node) -> np.ndarray:
    """All tokens up to the end of a node of the prefix index."""
    path = [node]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    return np.concatenate([np.frombuffer(n.key, np.int32) for n in reversed(path[:-1])])


def expected(prompt: np.ndarray, n_predict: int, sampling: SamplingParams = GREEDY) -> list[int]:
    """The tokens that a model which remembers nothing would answer."""
    sampler = Sampler(sampling, prompt, frozenset({EOG}), 1 << 20)
    oracle, ids = Oracle(prompt.tolist()), []
    for _ in range(n_predict):
        ids.append(sampler.sample(oracle.logits()).id)
        oracle.append(ids[-1])
    return ids


@dataclass
class Result:
    """Everything the engine told about one request."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    started: Started | None = None
    finished: Finished | None = None
    error: Exception | None = None

    @property
    def n_cached(self) -> int:
        assert self.finished is not None, self.error
        return self.finished.timings.cache_n

    @property
    def reason(self) -> str:
        assert self.finished is not None, self.error
        return self.finished.timings.cache_reason


class Bench:
    """A core with a fake model. `turn` is one round of the engine's loop."""

    def __init__(
        self,
        n_slots: int = 2,
        n_ctx: int = 2048,
        n_blocks: int = 64,
        port: MemoryPort | None = None,
        n_ubatch: int = 512,
        tokenizer: FakeTokenizer = LETTERS,
        runner: FakeRunner | None = None,
        **config: object,
    ) -> None:
        self.now = 0.0
        self.runner = runner or FakeRunner(n_ubatch)
        self.port = port
        if isinstance(port, DictStore):
            port.layout = self.runner.layout
        self.events: list[Event] = []
        self.n_wakes = 0
        self.core = Core(
            layout=self.runner.layout,
            n_vocab=self.runner.n_vocab,
            eog_ids=tokenizer.eog_ids,
            decoder=lambda: StreamDetokenizer(tokenizer),
            config=EngineConfig(n_slots, n_ctx, n_blocks, **config),
            port=port,
            clock=lambda: self.now,
            wake=self._wake,
            clear_rows=self.runner.clear_rows,
        )
        self.stepper = Stepper(self.core, self.runner.n_ubatch)
        self._ids = iter(range(1, 1 << 30))

    def _wake(self) -> None:
        self.n_wakes += 1

    def post(self, message: Message) -> None:
        self.core.accept(message)
        self._collect()

    def submit(self, prompt: Sequence[int] | np.ndarray, n_predict: int = 4, **fields: object) -> int:
        request_id = next(self._ids)
        fields.setdefault("sampling", GREEDY)
        self.post(GenerateRequest(request_id, np.asarray(prompt, np.int32), n_predict=n_predict, **fields))
        return request_id

    def turn(self) -> bool:
        """Returns whether there may be more to do at once."""
        self.core.expire()
        self.core.admit()
        step = self.stepper.plan()
        told = self._collect()
        if step is None:
            return told
        try:
            logits = self.runner.step(step.runs)
        except StepCancelled:
            self.stepper.give_up(step)
        except RuntimeError as error:
            self.stepper.fail(step, StepFailed(str(error)))
        else:
            self.stepper.finish(step, logits, float(step.n_rows))
        self._collect()
        return True

    def run(self, max_turns: int = 10_000) -> None:
        """Turn until there is nothing to do without a message or the clock."""
        for _ in range(max_turns):
            if not self.turn():
                return
        raise AssertionError("the engine does not come to rest")

    def result(self, request_id: int) -> Result:
        result = Result()
        for event in self.events:
            if event.request_id != request_id:
                continue
            match event:
                case Output():
                    result.text += event.text
                    result.ids += [output.id for output in event.tokens]
                    result.outputs.append(event)
                case Started():
                    result.started = event
                case Finished():
                    assert result.finished is None
                    result.finished = event
                case Failed():
                    assert result.error is None
                    result.error = event.error
        return result

    def ask(self, prompt: Sequence[int] | np.ndarray, n_predict: int = 4, **fields: object) -> Result:
        request_id = self.submit(prompt, n_predict, **fields)
        self.run()
        return self.result(request_id)

    def answer(self, ticket: int) -> SlotAnswer:
        (found,) = [e for e in self.events if isinstance(e, SlotAnswer) and e.ticket == ticket]
        return found

    def check_references(self, lent: bool = False) -> None:
        """Count who refers to each block anew and compare with the pool.

        `lent`: blocks may be destinations of loads, which belong to no slot yet.
        """
        pool, n = self.core.pool, self.core.pool.n_blocks
        assert pool.n_leases >= 0  # those that came back are counted
        held = [0] * n
        for slot in self.core.slots:
            for block in slot.sequence.blocks:
                held[block] += 1
        indexed = {node.block: node.n_rows for node in self.core.index.nodes()}
        assert len(indexed) == len(self.core.index), "one block is in two nodes"
        counted = [pool.holders(b) for b in range(n)]
        assert counted == held or (lent and all(c - h in (0, 1) for c, h in zip(counted, held, strict=True)))
        assert pool.n_used == sum(bool(counted[b] or b in indexed or pool.leased(b)) for b in range(n))

    def _collect(self) -> bool:
        events = self.core.take_events()
        self.events += events
        return bool(events)
