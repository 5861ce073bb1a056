"""The border to persistent memory, seen from the engine: what it asks for and what it lends.

`daemon.memory_bridge` implements `MemoryPort` over the store. Every method returns at once and never raises;
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
class PrefixSnapshot:
    """A prefix lent to the store. Its blocks stay immutable until `release` is called (any thread, once)."""

    root: bytes
    tokens: Tokens
    blocks: tuple[BlockViews, ...]
    why: str
    release: Callable[[], None]


@dataclass(frozen=True, slots=True)
class LookupDone:
    """Answer to `lookup`: the store can restore the first `n_tokens` of the asked tokens."""

    ticket: int
    n_tokens: int
    reason: str


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
        self, ticket: int, root: bytes, tokens: Tokens, n_tokens: int, destinations: tuple[BlockViews, ...]
    ) -> None:
        """Copy the blocks of ``tokens[:n_tokens]`` that `destinations` name into them and verify them."""

    def offer(self, snapshot: PrefixSnapshot) -> None:
        """Lend a prefix for write-behind. The port releases the snapshot when it is written or dropped."""
