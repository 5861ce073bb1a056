"""Embeddings: requests of whole prompts, computed between the steps of generation.

A prompt is one run of one step, so that every token of it can see every other; nothing of it is kept.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runtime.engine.messages import Event, Failed, Tokens
from runtime.engine.validation import check_tokens
from runtime.errors import (
    BatchExceeded,
    ContextExceeded,
    InvalidRequest,
    QueueFull,
    StepCancelled,
    StepFailed,
)
from runtime.memory.layout import BLOCK
from runtime.memory.points import Tail
from runtime.memory.pool import BlockPool
from runtime.pooling import Vectors
from runtime.readout import Readout
from runtime.runner import Run, Runner

Tables = tuple[npt.NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """The vectors of one or more prompts, at least one token each, with whatever special tokens they need.

    `request_id` is of the same numbering as those of generation. Answered by `Embedded` or `Failed`, which
    carries BatchExceeded, ContextExceeded, InvalidRequest, QueueFull or StepFailed, or StepCancelled after
    `Engine.cancel`.
    """

    request_id: int
    prompts: tuple[Tokens, ...]
    readout: Readout


@dataclass(frozen=True, slots=True)
class Embedded(Event):
    """What `EmbedRequest.readout` made of each prompt, in their order; not normalised.

    float32 [1, n_out], or [n_tokens, n_out] without pooling. `n_tokens` are all prompts' together.
    """

    vectors: tuple[Vectors, ...]
    n_tokens: int


@dataclass(slots=True, eq=False)
class _Job:
    request: EmbedRequest
    vectors: list[Vectors] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EmbedStep:
    """Runs of whole prompts, and the job of each."""

    jobs: list[_Job]
    runs: list[Run]


class EmbeddingQueue:
    """Requests in FIFO order; `plan` and `finish` frame a step of as many prompts as fit.

    At most `max_runs` prompts of `n_ctx` tokens go into a step, and `max_queue` requests wait.
    """

    def __init__(
        self, runner: Runner, n_ctx: int, max_runs: int, max_queue: int, emit: Callable[[Event], None]
    ) -> None:
        self._runner = runner
        self._n_ctx = n_ctx
        self._max_runs = max_runs
        self._max_queue = max_queue
        self._emit = emit
        self._jobs: deque[_Job] = deque()
        self._pool: BlockPool | None = None
        self._tables: list[Tables] = []
        self._tails: list[Tail] = []

    def accept(self, request: EmbedRequest) -> None:
        error = self._fault(request)
        if error is None and len(self._jobs) >= self._max_queue:
            error = QueueFull(len(self._jobs))
        if error is not None:
            self._emit(Failed(request.request_id, error))
        else:
            self._jobs.append(_Job(request))

    def cancel(self, request_id: int) -> None:
        """Drop a request; unknown ids are ignored."""
        for job in [job for job in self._jobs if job.request.request_id == request_id]:
            self._fail(job, StepCancelled("the request was cancelled"))

    def abort(self, error: Exception) -> None:
        while self._jobs:
            self._fail(self._jobs[0], error)

    def plan(self) -> EmbedStep | None:
        """The next step; None when nothing waits."""
        step, n_rows = EmbedStep([], []), 0
        for job in self._jobs:
            prompts = job.request.prompts
            for i in range(len(job.vectors), len(prompts)):
                n_rows += len(prompts[i])
                if n_rows > self._runner.n_ubatch or len(step.runs) == self._max_runs:
                    return step
                step.jobs.append(job)
                step.runs.append(self._run(prompts[i], len(step.runs)))
        return step if step.runs else None

    def finish(self, step: EmbedStep, rows: Vectors) -> None:
        """Read the step's rows out and tell of the requests that are complete."""
        at = 0
        for job, run in zip(step.jobs, step.runs, strict=True):
            own = rows[at : at + len(run.tokens)]
            at += len(run.tokens)
            if job not in self._jobs:
                continue
            job.vectors.append(job.request.readout(own))
            if not np.isfinite(job.vectors[-1]).all():
                self._fail(job, StepFailed("the model computed an embedding that is not of numbers"))
            elif len(job.vectors) == len(job.request.prompts):
                self._jobs.remove(job)
                n_tokens = sum(map(len, job.request.prompts))
                self._emit(Embedded(job.request.request_id, tuple(job.vectors), n_tokens))

    def fail(self, step: EmbedStep, error: Exception) -> None:
        """The model could not compute the step: its requests end."""
        for job in step.jobs:
            if job in self._jobs:
                self._fail(job, error)

    def _fault(self, request: EmbedRequest) -> Exception | None:
        """Why the request cannot be answered; None if it can."""
        n_ubatch = self._runner.n_ubatch
        if not self._runner.n_embd:
            return InvalidRequest("the model was not loaded for embeddings")
        if not request.prompts:
            return InvalidRequest("there is nothing to embed")
        for tokens in request.prompts:
            error = check_tokens(tokens, self._runner.n_vocab)
            if error is not None:
                return error
            if not len(tokens):
                return InvalidRequest("a prompt without tokens has no embedding")
            if len(tokens) > n_ubatch:
                return BatchExceeded(len(tokens), n_ubatch)
            if len(tokens) > self._n_ctx:
                return ContextExceeded(len(tokens), self._n_ctx)
        return None

    def _run(self, tokens: Tokens, i: int) -> Run:
        tables = self._scratch()[i]
        if self._pool is None or self._pool.tails is None:
            return Run(tokens, 0, tables, "none")
        while len(self._tails) <= i:
            self._tails.append(Tail(self._pool.tails))
        self._tails[i].clear()
        self._tails[i].reserve(len(tokens))
        return Run(tokens, 0, tables, "none", self._tails[i].addresses)

    def _scratch(self) -> list[Tables]:
        """Block tables for the runs of a step, made when first needed."""
        if not self._tables:
            n_blocks = -(-min(self._runner.n_ubatch, self._n_ctx) // BLOCK)
            pool = BlockPool(self._runner.layout, self._max_runs * n_blocks)
            for _ in range(self._max_runs):
                addresses = [pool.addresses(pool.allocate()) for _ in range(n_blocks)]
                self._tables.append(
                    tuple(np.array(group, np.int64) for group in zip(*addresses, strict=True))
                )
            self._pool = pool
        return self._tables

    def _fail(self, job: _Job, error: Exception) -> None:
        self._jobs.remove(job)
        self._emit(Failed(job.request.request_id, error))
