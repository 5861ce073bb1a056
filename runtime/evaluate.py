"""One sequence through a runner, for the tools that need logits and no queue."""

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
import numpy.typing as npt

from runtime.memory.layout import BLOCK
from runtime.memory.pool import BlockPool
from runtime.memory.tail import TailAddresses
from runtime.runner import Run, Runner


class LinearSequence:
    """Memory of one sequence of at most `n_ctx` tokens, with its own blocks."""

    def __init__(self, runner: Runner, n_ctx: int) -> None:
        self._runner = runner
        n_blocks = max(1, -(-n_ctx // BLOCK))
        self._pool = BlockPool(runner.layout, n_blocks)
        addresses = [self._pool.addresses(self._pool.allocate()) for _ in range(n_blocks)]
        self.tables = tuple(np.array(column, np.int64) for column in zip(*addresses, strict=True))
        self.n_tokens = 0
        tail = runner.layout.tail
        self._states = [np.zeros(tail.state_bytes if tail else 0, np.uint8) for _ in range(2)]
        self._rings = np.zeros(tail.ring_offsets[-1] if tail else 0, np.uint8)

    def truncate(self, n_tokens: int) -> None:
        """Forget what follows the first `n_tokens`. Not for a model with a tail."""
        self.n_tokens = min(self.n_tokens, n_tokens)

    def run(self, tokens: npt.NDArray[np.int32], logits: str = "last") -> Run:
        """The run that appends `tokens`; counts them as appended."""
        before, after = self._states
        tail = TailAddresses(before.ctypes.data, after.ctypes.data, self._rings.ctypes.data)
        run = Run(tokens, self.n_tokens, self.tables, logits, tail)
        self.n_tokens += len(tokens)
        self._states.reverse()
        return run

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
