"""The border to persistent memory, seen from the engine: what it asks for and what it lends.

`daemon.memory_port` implements `MemoryPort` over the store. Every method returns at once and never raises;
answers come back through `Engine.post`. The runtime knows nothing of keys, files or records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from runtime.engine.messages import Tokens

SegmentView = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BlockViews:
    """One block of a sequence: `index` counts blocks of 256 positions, `n_rows` (1..256) are valid.

    `segments[g]` are the bytes of cache group g that hold those rows (`GroupLayout.segment_bytes`).
    """

    index: int
    n_rows: int
    segments: tuple[SegmentView, ...]


@dataclass(frozen=True, slots=True)
class PointViews:
    """A tail at exactly `n_tokens`: bytes of each of `TailLayout.parts(n_tokens)`, in that order.

    `logits` f32 [n_vocab] are those after the last token, None where they were not kept.
    """

    n_tokens: int
    parts: tuple[SegmentView, ...]
    logits: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class PrefixSnapshot:
    """A prefix lent to the store. What it shows stays as it is until `release` is called (any thread, once).

    `points` are within the prefix, in ascending order; none for a model without a tail. `lost` is called
    before `release` by whoever did not write it: its points are part of the next offer again.
    """

    root: bytes
    tokens: Tokens
    blocks: tuple[BlockViews, ...]
    why: str
    release: Callable[[], None]
    points: tuple[PointViews, ...] = ()
    lost: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """A point that the store has: where, and whether with logits."""

    n_tokens: int
    has_logits: bool = False


@dataclass(frozen=True, slots=True)
class LookupDone:
    """Answer to `lookup`: the store can restore the first `n_tokens` of the asked tokens.

    Of a model with a tail it can do so only at one of `points`, the farthest first.
    """

    ticket: int
    n_tokens: int
    reason: str
    points: tuple[StoredPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadDone:
    """Answer to `load`: the destinations now hold the prefix up to `n_tokens`, verified.

    Fewer than asked for means that a record was missing or damaged; `reason` says which.
    """

    ticket: int
    n_tokens: int
    reason: str


class MemoryPort(Protocol):
    def lookup(self, ticket: int, root: bytes, tokens: Tokens, have: int) -> None:
        """How much of `tokens` can be restored, when the first `have` are already in memory?"""

    def load(
        self,
        ticket: int,
        root: bytes,
        tokens: Tokens,
        n_tokens: int,
        destinations: tuple[BlockViews, ...],
        point: PointViews | None = None,
    ) -> None:
        """Copy the blocks of ``tokens[:n_tokens]`` that `destinations` name into them and verify them.

        `point`, at `n_tokens`, says where its parts go, and its logits where they are wanted. Without all of
        it nothing is restored: `LoadDone` then says 0 tokens.
        """

    def offer(self, snapshot: PrefixSnapshot) -> None:
        """Lend a prefix for write-behind. The port releases the snapshot when it is written or dropped."""

    def recall(self) -> bool:
        """Memory is needed: release, as soon as that can be, all that was offered and nobody waits for.

        True when something was released, or writing has come on since the last call: waiting is no vain hope.
        """
