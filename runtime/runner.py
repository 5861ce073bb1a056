"""The protocol between the engine and whatever computes logits."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from runtime.memory.layout import MemoryLayout
from runtime.memory.tail import NO_TAIL, TailAddresses


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive positions of one sequence in a step.

    `tokens` int32 [n]; their positions are ``start .. start + n``.
    `tables[g]` int64 [>= ceil((start + n) / 256)]: addresses of the blocks of cache group g, writable for the
    new positions.
    `tail` is where the sequence's state and rings are, for a model whose layout has a tail.
    `logits` says for which rows logits are wanted: the last of them or all.
    """

    tokens: npt.NDArray[np.int32]
    start: int
    tables: tuple[npt.NDArray[np.int64], ...]
    logits: str = "last"  # "none" | "last" | "all"
    tail: TailAddresses = NO_TAIL


class Runner(Protocol):
    """A loaded model with its plan and thread team. Used by one thread at a time."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_embd(self) -> int:
        """Values of a row of `embed`; 0 for a model that computes logits."""

    @property
    def n_ubatch(self) -> int:
        """The largest number of rows in a step."""

    @property
    def layout(self) -> MemoryLayout: ...

    def step(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        """Compute one step and return logits float32 [rows wanted, n_vocab], in the order of `runs`.

        The array is a view that the next step overwrites; the caller may change it.
        Errors: StepCancelled after `cancel`. Rows of the new positions may then be written in part; a step
        that computes them again leaves the same memory as if there had been no other.
        """

    def embed(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        """Compute one step of whole sequences and return hidden states float32 [rows, n_embd], of all rows.

        They are those after the final norm where the model has one. Which logits runs want is ignored. The
        array is a view that the next step overwrites. A model has either this or `step`:
        UnsupportedModel for the other. Errors: as of `step`.
        """

    def cancel(self) -> None:
        """Give the running step up, from another thread. Comes it between two steps, the next one ends so."""

    def clear_rows(self, addresses: tuple[int, ...], first: int, end: int) -> None:
        """Make rows [first, end) of a block those of zero keys and values, whatever they held.

        `addresses[g]` is the block's in cache group g. In a group whose rows stand for several positions,
        those rows are zero afterwards that a position in [first, end) decides: of rows for `unit` positions
        each, row r if ``first <= (r + 1) * unit - 1 < end``. Not while a step runs.
        """

    def close(self) -> None:
        """End the team's threads. Idempotent."""
