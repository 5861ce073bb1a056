"""One sequence through a runner, for the tools that need logits and no queue."""

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
import numpy.typing as npt

from runtime.memory.layout import BLOCK
from runtime.memory.points import Logits, Point, Tail
from runtime.memory.pool import BlockPool
from runtime.memory.tail import NO_TAIL
from runtime.runner import Run, Runner


class LinearSequence:
    """Memory of one sequence of at most `n_ctx` tokens, with its own blocks and tail."""

    def __init__(self, runner: Runner, n_ctx: int) -> None:
        self._runner = runner
        n_blocks = max(1, -(-n_ctx // BLOCK))
        self._pool = BlockPool(runner.layout, n_blocks)
        self._blocks = [self._pool.allocate() for _ in range(n_blocks)]
        addresses = [self._pool.addresses(block) for block in self._blocks]
        self.tables = tuple(np.array(column, np.int64) for column in zip(*addresses, strict=True))
        self.n_tokens = 0
        self._tail = Tail(self._pool.tails) if self._pool.tails is not None else None

    def truncate(self, n_tokens: int) -> None:
        """Forget what follows the first `n_tokens`. Errors: ValueError where only a point leads back."""
        if self._tail is not None and n_tokens < self.n_tokens:
            if not self._tail.can_return(n_tokens):
                raise ValueError(f"no way back from {self.n_tokens} tokens to {n_tokens} but by a point")
            self._tail.return_to(n_tokens)
        self.n_tokens = min(self.n_tokens, n_tokens)

    def capture(self, logits: Logits | None = None) -> Point:
        """The tail at this very token, of a model that has one."""
        assert self._tail is not None
        return self._tail.capture(self.n_tokens, logits)

    def load(self, point: Point, source: "LinearSequence") -> None:
        """Become the first `point.n_tokens` tokens of `source`, which may be this sequence itself.

        Its rows are copied; the point is one of these tokens.
        """
        for mine, theirs in zip(self._blocks, source._blocks, strict=False):
            if source is not self:
                for new, old in zip(
                    self._pool.views(mine, BLOCK), source._pool.views(theirs, BLOCK), strict=True
                ):
                    new[:] = old
        if self._tail is not None:
            self._tail.load(point)
        self.n_tokens = point.n_tokens

    def run(self, tokens: npt.NDArray[np.int32], logits: str = "last") -> Run:
        """The run that appends `tokens`; counts them as appended."""
        start, tail = self.n_tokens, NO_TAIL
        self.n_tokens += len(tokens)
        if self._tail is not None:
            self._tail.reserve(self.n_tokens)
            tail = self._tail.addresses
            self._tail.commit(start)
        return Run(tokens, start, self.tables, logits, tail)

    def evaluate(
        self, tokens: npt.NDArray[np.int32], chunks: Sequence[int] = (), logits: str = "all"
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Append `tokens` in chunks (sizes repeat until the end; none: steps of `n_ubatch`).

        Yields, per step, a view of logits float32 [rows wanted, n_vocab] that the next step overwrites.
        """
        sizes = cycle(chunks or (self._runner.n_ubatch,))
        at = 0
        while at < len(tokens):
            part = tokens[at : at + min(next(sizes), self._runner.n_ubatch)]
            yield self._runner.step([self.run(part, logits)])
            at += len(part)
