"""A slot: one sequence's memory and the request that uses it."""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from runtime.engine.answer import Answer
from runtime.engine.candidates import Logits
from runtime.engine.commands import InstallPrefix
from runtime.engine.messages import GenerateRequest, SlotState, Timings
from runtime.engine.schedule import Demand
from runtime.memory.sequence import BlockSequence


class Phase(StrEnum):
    IDLE = "idle"
    RESTORING = "restoring"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True)
class Task:
    """A request with its progress. Times are seconds of the engine's clock; `answering`: the first token.

    `turns` are the turns' starts where a point is due, `logits` those after the first `logits_at` tokens, for
    as long as nothing has changed them. The first `n_offered` tokens of the prompt were lent to the store at
    `offered_at`, which counts from when its reading began.
    """

    request: GenerateRequest
    arrival: int
    answer: Answer
    started: float
    answering: float | None = None
    served: int = 0
    timings: Timings = field(default_factory=Timings)
    turns: frozenset[int] = frozenset()
    logits: Logits | None = None
    logits_at: int = 0
    n_offered: int = 0
    offered_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.offered_at = self.started

    def keep_logits(self, logits: Logits, n_tokens: int) -> None:
        """Keep the logits after `n_tokens` tokens, which the next step overwrites.

        They are for a point at this token, if there will be one; most samplers leave them as they are.
        """
        self.logits = logits.copy() if self.answer.sampler.changes_logits else logits
        self.logits_at = n_tokens

    def logits_after(self, n_tokens: int) -> Logits | None:
        return self.logits if self.logits_at == n_tokens else None

    def timings_at(self, now: float) -> Timings:
        """The timings so far, as a copy."""
        t = self.timings
        predicted_ms = 0.0 if self.answering is None else (now - self.answering) * 1e3
        return Timings(
            t.cache_n,
            t.cache_source,
            t.cache_reason,
            t.prompt_n,
            t.prompt_ms,
            self.answer.n_decoded,
            predicted_ms,
        )


class Slot:
    """The sequence outlives the request: it is what the next one continues.

    `owes_end`: the store was not lent all that going on after the last answer needs.
    """

    def __init__(self, id: int, sequence: BlockSequence) -> None:
        self.id = id
        self.sequence = sequence
        self.phase = Phase.IDLE
        self.task: Task | None = None
        self.install: InstallPrefix | None = None
        self.last_used = 0
        self.owes_end = False
        self.next_token = np.zeros(1, np.int32)

    @property
    def idle(self) -> bool:
        return self.phase is Phase.IDLE

    @property
    def running(self) -> bool:
        return self.phase is Phase.PREFILL or self.phase is Phase.DECODE

    def demand(self) -> Demand:
        assert self.task is not None
        n_left = 0
        if self.phase is Phase.PREFILL:
            n_left = len(self.task.request.prompt) - self.sequence.n_tokens
        return Demand(self.id, n_left, self.task.arrival, self.task.served)

    def state(self) -> SlotState:
        task = self.task
        n_tokens, n_points = self.sequence.n_tokens, len(self.sequence.points())
        if task is None:
            return SlotState(
                self.id, self.sequence.capacity, not self.idle, n_tokens=n_tokens, n_checkpoints=n_points
            )
        request, answer, timings = task.request, task.answer, task.timings
        return SlotState(
            id=self.id,
            n_ctx=self.sequence.capacity,
            is_processing=not self.idle,
            id_task=request.request_id,
            n_tokens=n_tokens,
            n_prompt_tokens=len(request.prompt),
            n_prompt_tokens_processed=timings.prompt_n,
            n_prompt_tokens_cache=timings.cache_n,
            n_decoded=answer.n_decoded,
            n_remain=answer.n_remain,
            has_next_token=self.running,
            has_new_line=answer.has_new_line,
            n_checkpoints=n_points,
            cache_source=timings.cache_source,
            cache_reason=timings.cache_reason,
            sampling=request.sampling,
            stop=request.stop,
            n_predict=request.n_predict,
        )
