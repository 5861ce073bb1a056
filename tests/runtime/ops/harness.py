"""Run single ops of the tape on arrays."""

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from runtime.kernels import job
from runtime.kernels.tape import JOB_VARS, SCRATCH, Op, W, program
from runtime.plan.arena import Arena
from runtime.team import Team


class Bench:
    """A team, and a job whose variables tests set; `run` executes one op with every thread."""

    def __init__(self, n_threads: int = 2) -> None:
        self.arena = Arena()
        self.job = self.arena.array((JOB_VARS // 8 + job.N_VARS,), np.int64)
        self.vars = self.job[JOB_VARS // 8 :]
        self.job[2] = self.arena.take(n_threads * SCRATCH)
        self.team = Team(program(), n_threads)

    def array(self, values: Any, dtype: Any = np.float32) -> np.ndarray:
        """A copy of `values` in memory that kernels may read past by a cache line."""
        values = np.asarray(values, dtype)
        out = self.arena.array(values.shape, dtype)
        out[...] = values
        return out

    def run(self, op: Op, *params: int) -> None:
        tape = self.arena.array((1, W), np.int64)
        tape[0, 0] = op.address
        tape[0, 1 : 1 + len(params)] = params
        self.job[:2] = [tape.ctypes.data, 1]
        self.team.run(self.job.ctypes.data)

    def rows(self, n: int, positions: Sequence[int] = ()) -> None:
        """Set the row count and, where given, each row's position in run 0."""
        self.vars[[job.ROWS, job.OUT_ROWS]] = n
        self.positions = self.array(positions or range(n), np.int64)
        self.row_run = self.array([0] * n, np.int64)
        self.vars[job.ROW_POSITION] = self.positions.ctypes.data
        self.vars[job.ROW_RUN] = self.row_run.ctypes.data

    def runs(self, runs: list[tuple[int, int, int, list[np.ndarray]]]) -> None:
        """(first row, rows, start position, tables) of each run, with the rows' positions and runs."""
        words = self.arena.array((len(runs), job.RUN_WORDS), np.int64)
        positions: list[int] = []
        owners: list[int] = []
        for i, (row, n, start, tables) in enumerate(runs):
            words[i, :3] = [row, n, start]
            words[i, job.RUN_BLOCKS : job.RUN_BLOCKS + len(tables)] = [t.ctypes.data for t in tables]
            positions += range(start, start + n)
            owners += [i] * n
        self.rows(len(positions), positions)
        self.row_run[:] = owners
        self.run_words = words
        self.vars[[job.RUNS, job.RUN_TABLE]] = [len(runs), words.ctypes.data]

    def close(self) -> None:
        self.team.close()


@contextmanager
def bench(n_threads: int = 2):
    it = Bench(n_threads)
    try:
        yield it
    finally:
        it.close()
