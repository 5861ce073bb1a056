"""One step of the model: which rows go in, and what comes of the logits."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.engine.core import Core
from runtime.engine.messages import Output, StopReason
from runtime.engine.schedule import Pace, Share, plan_step
from runtime.engine.slot import Phase, Slot, Task
from runtime.errors import PoolExhausted, StepFailed
from runtime.memory.layout import BLOCK
from runtime.runner import Run

# Whoever keeps asking and leaving costs the others at most so many unfinished steps for each whole one.
_GIVEN_UP_IN_A_ROW = 2
# Positions after which what memory may soon lack is offered to the store: each offer goes through all blocks.
_OFFERED_AT = 16 * BLOCK
# What a crash may cost of a prompt that is being read: so many seconds, or such a share of what was read.
_OFFERED_SECONDS = 0.5
_OFFERED_SHARE = 32
# After so long without a free block the store is asked to give back what it was offered.
_RECALL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """The runs of a step and the slot of each."""

    slots: list[Slot]
    runs: list[Run]

    @property
    def n_rows(self) -> int:
        return sum(len(run.tokens) for run in self.runs)


@dataclass(slots=True)
class _Stall:
    """Nobody can go on: when the store is asked for memory (again), and when somebody has to end."""

    recall_at: float
    give_up_at: float


class Stepper:
    def __init__(self, core: Core, n_ubatch: int) -> None:
        self._core = core
        self._n_ubatch = n_ubatch
        self._pace = Pace(core.config.max_step_ms)
        self._stall: _Stall | None = None
        self._n_given_up = 0

    @property
    def stalled(self) -> bool:
        """All running slots lack blocks and wait for the store to give some back."""
        return self._stall is not None

    def next_deadline(self) -> float | None:
        """When a step that found no free blocks has waited long enough for the store to give some back."""
        return None if self._stall is None else min(self._stall.recall_at, self._stall.give_up_at)

    def plan(self) -> Step | None:
        """The next step; None when nobody can go on.

        A slot for whose rows there are no blocks is left out, and its rows are offered to the others.
        """
        self._answer_at_once()
        lends = self._core.pool.n_leases > 0
        slots = [slot for slot in self._core.slots if slot.running]
        limit = self._pace.rows()
        while slots:
            shares = plan_step([slot.demand() for slot in slots], self._n_ubatch, limit)
            step, blocked = self._build(shares)
            if step.runs:
                self._stall = None
                self._forget_logits()
                return step
            slots = [slot for slot in slots if slot.running and slot not in blocked]
        if any(slot.running for slot in self._core.slots):
            self._unblock(lends)
        else:
            self._stall = None
        return None

    def finish(self, step: Step, logits: npt.NDArray[np.float32], ms: float) -> None:
        """Commit the step's rows and sample from its logits; `ms` is how long it took."""
        core = self._core
        counters = core.counters
        self._n_given_up = 0
        counters.steps += 1
        counters.busy_slots += len(step.runs)
        n_rows = step.n_rows
        self._pace.measured(n_rows, ms)
        row = 0
        for slot, run in zip(step.slots, step.runs, strict=True):
            task = slot.task
            assert task is not None
            task.served = counters.steps
            slot.sequence.commit(run.tokens)
            counters.n_tokens_max = max(counters.n_tokens_max, slot.sequence.n_tokens)
            mine = logits[row] if run.logits == "last" else None
            row += mine is not None
            if mine is not None and slot.sequence.has_tail:
                task.keep_logits(mine, slot.sequence.n_tokens)
            core.checkpoints.passed(slot, core.slots)
            if slot.phase is Phase.PREFILL:
                self._prefilled(slot, task, len(run.tokens))
            elif slot.sequence.n_tokens % BLOCK == 0:
                core.lender.offer(slot, slot.sequence.n_tokens, "interval")
            if mine is not None and slot.phase is Phase.DECODE:
                self._advance(slot, task, mine)

    def reading(self, step: Step) -> frozenset[int]:
        """The ids of the requests whose prompt `step` reads: when one is cancelled, the step is given up.

        What it computes for others has to be computed again then, so that is asked of them only so often.
        """
        if len(step.slots) > 1 and self._n_given_up >= _GIVEN_UP_IN_A_ROW:
            return frozenset()
        tasks = [slot.task for slot in step.slots if slot.phase is Phase.PREFILL]
        return frozenset(task.request.request_id for task in tasks if task is not None)

    def give_up(self, step: Step) -> None:
        """The step was cancelled. Nothing is committed, so the next one computes what is still wanted."""
        self._n_given_up += 1

    def fail(self, step: Step, error: Exception) -> None:
        """The model could not compute the step: its requests end, the engine goes on."""
        for slot in step.slots:
            self._core.fail(slot, error)

    def _answer_at_once(self) -> None:
        """Where a point with logits is the whole prompt's, nothing is left to read."""
        for slot in self._core.slots:
            task = slot.task
            if slot.phase is Phase.PREFILL and task is not None and not slot.demand().n_prefill:
                self._prefilled(slot, task, 0)
                if slot.running:
                    assert task.logits is not None
                    self._advance(slot, task, task.logits.copy())

    def _forget_logits(self) -> None:
        """The step that is planned overwrites them, also if it is given up."""
        for slot in self._core.slots:
            if slot.task is not None:
                slot.task.logits = None

    def _build(self, shares: list[Share]) -> tuple[Step, list[Slot]]:
        """The runs of the shares, and the slots that found no blocks for theirs."""
        step, blocked = Step([], []), []
        for share in shares:
            slot = self._core.slots[share.id_slot]
            # An older slot may have taken this one's blocks a moment ago.
            if not slot.running:
                continue
            n_rows = share.n_rows
            if slot.phase is Phase.PREFILL:
                n_rows = self._core.checkpoints.cut(slot, n_rows)
            if self._reserve(slot, n_rows, step.slots):
                step.slots.append(slot)
                step.runs.append(_run(slot, n_rows))
            else:
                blocked.append(slot)
        return step, blocked

    def _offer_read(self, slot: Slot, task: Task, n_rows: int) -> None:
        """Lend the store what was read of a prompt: it may take minutes more, and memory may lack windows."""
        core, n = self._core, slot.sequence.n_tokens // BLOCK * BLOCK
        is_late = core.clock() - task.offered_at >= _OFFERED_SECONDS
        if (is_late and n - task.n_offered >= max(BLOCK, n // _OFFERED_SHARE)) or self._lacks_windows(
            slot, n_rows
        ):
            core.lender.offer(slot, n, "interval")
            task.offered_at, task.n_offered = core.clock(), n

    def _lacks_windows(self, slot: Slot, n_rows: int) -> bool:
        """Asked from time to time: will there be no memory for windows before the prompt is read?"""
        pool, n = self._core.pool, slot.sequence.n_tokens
        if n // _OFFERED_AT == (n - n_rows) // _OFFERED_AT or not pool.layout.windowed:
            return False
        return pool.shortage(n_blocks=-(-slot.demand().n_prefill // BLOCK)) > 0

    def _prefilled(self, slot: Slot, task: Task, n_rows: int) -> None:
        core = self._core
        task.timings.prompt_n += n_rows
        core.counters.prompt_tokens += n_rows
        core.progress(slot, task)
        n_prompt = len(task.request.prompt)
        if slot.sequence.n_tokens < n_prompt:
            self._offer_read(slot, task, n_rows)
            return
        # Without its point, a model with a tail could not use the last block.
        n_offered = n_prompt if slot.sequence.has_tail else n_prompt // BLOCK * BLOCK
        core.lender.offer(slot, n_offered, "prompt_end")
        if task.request.n_predict == 0:
            core.release(slot, StopReason.LIMIT)
            return
        task.answering = core.clock()
        task.timings.prompt_ms = (task.answering - task.started) * 1e3
        core.counters.prompt_ms += task.timings.prompt_ms
        slot.phase = Phase.DECODE

    def _advance(self, slot: Slot, task: Task, logits: npt.NDArray[np.float32]) -> None:
        core = self._core
        try:
            piece = task.answer.advance(logits)
        except StepFailed as error:
            core.fail(slot, error)
            return
        core.counters.predicted_tokens += 1
        if piece.text or piece.outputs:
            timings = task.timings_at(core.clock())
            core.emit(Output(task.request.request_id, piece.text, piece.outputs, timings))
        if piece.reason is StopReason.NONE:
            slot.next_token[0] = piece.token
        else:
            core.release(slot, piece.reason)

    def _reserve(self, slot: Slot, n_rows: int, planned: list[Slot]) -> bool:
        while True:
            try:
                slot.sequence.reserve(n_rows)
            except PoolExhausted:
                if not (self._core.reclaim() or self._preempt_younger(slot, planned)):
                    return False
            else:
                return True

    def _preempt_younger(self, slot: Slot, planned: list[Slot]) -> bool:
        """Take blocks from a prompt that came later: the oldest request always gets on."""
        assert slot.task is not None
        arrival = slot.task.arrival
        younger = [
            other
            for other in self._core.slots
            if other.phase is Phase.PREFILL
            and other.task is not None
            and other.task.arrival > arrival
            and other not in planned
        ]
        if not younger:
            return False
        self._core.preempt(max(younger, key=lambda other: other.demand().arrival))
        return True

    def _unblock(self, lends: bool) -> None:
        """Every running slot lacks blocks: wait for the store to return some, then end the youngest.

        The store is asked for what was only offered. A save it has to finish, as long as it gets on.
        `lends` says whether anything was lent when blocks were looked for: all of it may be back by now.
        """
        core = self._core
        now = core.clock()
        patience = core.config.restore_seconds
        if self._stall is None:
            self._stall = _Stall(now + min(_RECALL_SECONDS, patience), now + patience)
        if lends and now >= self._stall.recall_at:
            self._stall.recall_at = now + min(_RECALL_SECONDS, patience)
            if core.lender.recall():
                self._stall.give_up_at = now + patience
        if lends and now < self._stall.give_up_at:
            return
        youngest = max((slot for slot in core.slots if slot.running), key=lambda slot: slot.demand().arrival)
        self._stall = None
        assert youngest.task is not None
        if youngest.phase is Phase.DECODE:
            youngest.task.answer.truncated = True
            core.release(youngest, StopReason.LIMIT)
        else:
            core.fail(youngest, core.pool.exhausted())


def _run(slot: Slot, n_rows: int) -> Run:
    sequence = slot.sequence
    start = sequence.n_tokens
    if slot.phase is Phase.DECODE:
        return Run(slot.next_token, start, sequence.tables, "last", sequence.tail)
    assert slot.task is not None
    request = slot.task.request
    tokens = request.prompt[start : start + n_rows]
    # Those of the whole prompt are part of its point, even if nothing is to be predicted now.
    wanted = request.n_predict != 0 or sequence.has_tail
    last = wanted and start + n_rows == len(request.prompt)
    return Run(tokens, start, sequence.tables, "last" if last else "none", sequence.tail)
