"""Runs a plan: fills the step's tables and walks the op tape with the team."""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from runtime.errors import StepCancelled, UnsupportedModel
from runtime.kernels import job
from runtime.kernels.tape import JOB_VARS, SCRATCH, Native, W, program
from runtime.memory.layout import BLOCK, MemoryLayout
from runtime.plan.builder import Plan
from runtime.plan.checked import Checker
from runtime.runner import Run
from runtime.team import Team

_CLEAR_ROWS = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)


def compile_ops(ops: Iterable[Native], progress: Callable[[str, float], None] | None = None) -> None:
    """Compile each distinct op once, reporting the share done as stage "compile"."""
    distinct = list(dict.fromkeys(ops))
    for i, op in enumerate(distinct):
        if progress is not None:
            progress("compile", i / len(distinct))
        _ = op.address
    if progress is not None:
        progress("compile", 1.0)


class PlanRunner:
    """A `runtime.runner.Runner` over one plan and one thread team.

    Steps in which no run has more than one token take `n_threads` threads, others `n_threads_batch`.
    Building it compiles (or loads from the kernel cache) every op of the plan.
    """

    def __init__(
        self,
        plan: Plan,
        layout: MemoryLayout,
        n_threads: int,
        n_threads_batch: int,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        options, arena = plan.options, plan.arena
        self._plan = plan
        self._layout = layout
        self._n_ubatch = options.n_ubatch
        self._max_outputs = options.max_outputs
        self._threads, self._threads_batch = n_threads, n_threads_batch
        n_team = max(n_threads, n_threads_batch)
        self._max_positions = -(-options.n_ctx // BLOCK) * BLOCK
        n = options.n_ubatch
        self._tokens = plan.tokens
        self._positions = arena.array((n,), np.int64, "positions")
        self._row_run = arena.array((n,), np.int64, "runs of rows")
        self._runs = arena.array((options.max_runs, job.RUN_WORDS), np.int64, "runs")
        self._out_index = arena.array((options.max_outputs,), np.int64, "rows with logits")
        self._tape = arena.array((len(plan.tape), W), np.int64, "tape")
        pointed_at = (param for params in plan.tape for param in params if isinstance(param, Native))
        of_words = (function for _, _, function in plan.functions)
        compile_ops([*plan.ops, *pointed_at, *of_words, *(g.clear for g in plan.groups)], progress)
        for array, index, function in plan.functions:
            array[index] = function.address
        for words, op, params in zip(self._tape, plan.ops, plan.tape, strict=True):
            words[0] = op.address
            words[1 : 1 + len(params)] = [p.address if isinstance(p, Native) else p for p in params]
        self._job = arena.array((JOB_VARS // 8 + job.N_VARS,), np.int64, "job")
        self._job[:3] = [self._tape.ctypes.data, len(self._tape), arena.take(n_team * SCRATCH, "scratch")]
        self._vars = self._job[JOB_VARS // 8 :]
        self._vars[[job.RUN_TABLE, job.ROW_POSITION, job.ROW_RUN, job.TOKENS, job.OUT_INDEX]] = [
            a.ctypes.data for a in (self._runs, self._positions, self._row_run, self._tokens, self._out_index)
        ]
        self._zeros = arena.array((max((g.row_floats for g in plan.groups), default=0),), np.float32)
        self._clear_rows = [_CLEAR_ROWS(group.clear.address) for group in plan.groups]
        self._team = Team(program(), n_team)
        self._result = plan.result_array()
        self._checker = Checker(plan, layout) if arena.guarded else None

    @property
    def n_vocab(self) -> int:
        return self._plan.n_vocab

    @property
    def n_embd(self) -> int:
        return self._plan.result.width if self._plan.options.embeddings else 0

    @property
    def n_ubatch(self) -> int:
        return self._n_ubatch

    @property
    def layout(self) -> MemoryLayout:
        return self._layout

    def step(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        """See `Runner.step`. Errors: ValueError too, for a step larger than the plan or out of range."""
        if self.n_embd:
            raise UnsupportedModel("the model gives embeddings, not logits")
        _, n_out = self._compute(runs)
        return self._result[:n_out, : self._plan.n_vocab]

    def embed(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        """See `Runner.embed`. Errors: as of `step`, and ValueError for a run that starts later."""
        if not self.n_embd:
            raise UnsupportedModel("the model was not loaded for embeddings")
        if any(run.start for run in runs):
            raise ValueError("a sequence is embedded as a whole")
        n_rows, _ = self._compute([replace(run, logits="none") for run in runs])
        return self._result[:n_rows, : self.n_embd]

    def cancel(self) -> None:
        self._team.cancel()

    def clear_rows(self, addresses: tuple[int, ...], first: int, end: int) -> None:
        zeros = self._zeros.ctypes.data
        groups = zip(self._plan.groups, self._clear_rows, addresses, strict=True)
        for group, clear_rows, address in groups:
            for layer in group.layers:
                clear_rows(layer.ctypes.data, address, first, end, zeros)

    def close(self) -> None:
        self._team.close()

    def _compute(self, runs: list[Run]) -> tuple[int, int]:
        """Walk the tape; returns how many rows it had and how many of them have logits."""
        row = n_out = 0
        for i, run in enumerate(runs):
            row, n_out = self._place(i, run, row, n_out)
        self._vars[[job.ROWS, job.OUT_ROWS, job.RUNS]] = [row, n_out, len(runs)]
        if row:
            ids = self._tokens[:row]
            if int(ids.min()) < 0 or int(ids.max()) >= self._plan.n_vocab:
                raise ValueError("a token id lies outside the vocabulary")
            n_threads = self._threads if row == len(runs) else self._threads_batch
            if self._checker is not None:
                self._checker.runs(runs)
            if not self._walk(n_threads):
                raise StepCancelled("the step was cancelled")
        return row, n_out

    def _walk(self, n_threads: int) -> bool:
        if self._checker is None:
            return self._team.run(self._job.ctypes.data, n_threads)
        for i, op in enumerate(self._plan.ops):
            self._job[:2] = [self._tape[i].ctypes.data, 1]
            if not self._team.run(self._job.ctypes.data, n_threads):
                return False
            self._checker.after(i, op)
        return True

    def _place(self, index: int, run: Run, row: int, n_out: int) -> tuple[int, int]:
        n = len(run.tokens)
        end = row + n
        wanted = {"none": 0, "last": 1, "all": n}[run.logits]
        if end > self._n_ubatch or n_out + wanted > self._max_outputs or index >= len(self._runs):
            raise ValueError("the step is larger than the plan was built for")
        if n == 0 or run.start + n > self._max_positions:
            raise ValueError("a run is empty or lies beyond the context")
        self._tokens[row:end] = run.tokens
        self._positions[row:end] = np.arange(run.start, run.start + n)
        self._row_run[row:end] = index
        words = self._runs[index]
        words[job.RUN_ROW], words[job.RUN_LENGTH], words[job.RUN_START] = row, n, run.start
        tail = run.tail
        words[job.RUN_BEFORE : job.RUN_RINGS + 1] = tail.before, tail.after, tail.rings
        for g, table in enumerate(run.tables):
            words[job.RUN_BLOCKS + g] = table.ctypes.data
        self._out_index[n_out : n_out + wanted] = np.arange(end - wanted, end)
        return end, n_out + wanted
