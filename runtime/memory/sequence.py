"""What one sequence remembers, as the engine sees it, and the implementation for attention models."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from runtime.errors import PoolExhausted
from runtime.memory.layout import BLOCK
from runtime.memory.pool import Lease
from runtime.memory.prefix import Match, Node, PrefixIndex, Tokens

Tables = tuple[npt.NDArray[np.int64], ...]


class SequenceMemory(Protocol):
    """The memory of one sequence: rows for the first `n_tokens` of its `tokens`.

    A step goes ``reserve(n)`` → the runner writes rows through `tables` → ``commit(tokens)``. What was
    reserved and not committed does not exist: a step that failed or was cancelled needs no undoing.
    `can_truncate` is the seam for memories that hold a state instead of rows: where it is False only a
    checkpoint leads back.
    """

    @property
    def n_tokens(self) -> int: ...

    @property
    def tokens(self) -> Tokens:
        """int32 [n_tokens], a view."""

    @property
    def tables(self) -> Tables:
        """Per cache group: int64 addresses of the blocks, one per 256 positions of the capacity."""

    def can_truncate(self, n_tokens: int) -> bool: ...

    def truncate(self, n_tokens: int) -> None: ...

    def reserve(self, n_new: int) -> None:
        """Make the next `n_new` positions writable. `PoolExhausted` leaves the sequence as it was."""

    def commit(self, tokens: Tokens) -> None:
        """The rows of these tokens are written."""

    def fork(self) -> "SequenceMemory":
        """A second sequence with the same past; neither sees what the other does next."""

    def clear(self) -> None: ...


class BlockSequence:
    """`SequenceMemory` over shared blocks: full blocks are shared with whoever has the same prefix.

    The last, partial block may be shared as well; it is copied when a row is about to be written that
    somebody else relies on. A `private` sequence keeps its blocks out of the prefix index.
    """

    def __init__(self, index: PrefixIndex, root: bytes, capacity: int, private: bool = False) -> None:
        self.root = root
        self.capacity = capacity
        self.private = private
        self._index = index
        self._pool = index.pool
        self._tokens = np.zeros(capacity, np.int32)
        self._n_tokens = 0
        self._blocks: list[int] = []
        self._nodes: list[Node] = []
        n_blocks = -(-capacity // BLOCK)
        self._tables = tuple(np.zeros(n_blocks, np.int64) for _ in self._pool.layout.groups)

    @property
    def n_tokens(self) -> int:
        return self._n_tokens

    @property
    def tokens(self) -> Tokens:
        return self._tokens[: self._n_tokens]

    @property
    def tables(self) -> Tables:
        return self._tables

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(self._blocks)

    def adopt(self, match: Match, tokens: Tokens) -> None:
        """Become the sequence of ``tokens[:match.n_tokens]`` found in the index."""
        nodes = [*match.nodes, match.tail] if match.tail is not None else [*match.nodes]
        self._become(tokens[: match.n_tokens], 0, [self._share(node.block) for node in nodes])
        self._nodes = list(match.nodes)

    def graft(self, tokens: Tokens, first: int, blocks: list[int]) -> None:
        """Become the sequence of `tokens`, its blocks from `first` on replaced by `blocks`.

        The blocks already count this sequence as a holder; their rows must be those of `tokens`.
        """
        self._become(tokens, first, blocks)
        self.publish()

    def can_truncate(self, n_tokens: int) -> bool:
        return 0 <= n_tokens <= self._n_tokens

    def truncate(self, n_tokens: int) -> None:
        if not self.can_truncate(n_tokens):
            raise ValueError(f"cannot truncate a sequence of {self._n_tokens} tokens to {n_tokens}")
        self._n_tokens = n_tokens
        self._cut(-(-n_tokens // BLOCK))
        del self._nodes[n_tokens // BLOCK :]

    def clear(self) -> None:
        self.truncate(0)

    def fork(self) -> "BlockSequence":
        twin = BlockSequence(self._index, self.root, self.capacity, self.private)
        shared = self._blocks[: -(-self._n_tokens // BLOCK)]
        twin._become(self.tokens, 0, [self._share(block) for block in shared])
        twin._nodes = self._nodes.copy()
        return twin

    def reserve(self, n_new: int) -> None:
        end = self._n_tokens + n_new
        if end > self.capacity:
            raise ValueError(f"{end} tokens do not fit a sequence of {self.capacity}")
        if n_new and self._n_tokens % BLOCK:
            self.own_tail()
        try:
            while len(self._blocks) * BLOCK < end:
                self._append(self._index.allocate())
        except PoolExhausted:
            self._cut(-(-self._n_tokens // BLOCK))
            raise

    def commit(self, tokens: Tokens) -> None:
        start = self._n_tokens
        self._n_tokens = start + len(tokens)
        self._tokens[start : self._n_tokens] = tokens
        if self._n_tokens // BLOCK > start // BLOCK:
            self.publish()

    def publish(self) -> None:
        """Index the full blocks that are not yet; a block that is known already replaces the own one."""
        if self.private:
            return
        while len(self._nodes) < self._n_tokens // BLOCK:
            i = len(self._nodes)
            parent = self._nodes[-1] if self._nodes else None
            node = self._index.insert(self.root, parent, self._key(i, BLOCK), self._blocks[i])
            if node.block != self._blocks[i]:
                self._replace(i, self._share(node.block))
            self._nodes.append(node)

    def publish_tail(self) -> None:
        """Index the partial last block as well, so that others find the sequence up to its last token."""
        row = self._n_tokens % BLOCK
        if self.private or not row:
            return
        i = self._n_tokens // BLOCK
        parent = self._nodes[-1] if self._nodes else None
        self._index.insert(self.root, parent, self._key(i, row), self._blocks[i])

    def own_tail(self) -> int:
        """The partial last block; it is copied first if somebody else needs rows of it after `n_tokens`.

        `PoolExhausted` leaves the sequence as it was.
        """
        row = self._n_tokens % BLOCK
        i = self._n_tokens // BLOCK
        if not self._pool.appendable(self._blocks[i], row):
            self._copy_tail(row)
        return self._blocks[i]

    def lease(self, n_tokens: int) -> tuple[Lease, list[tuple[int, int]]]:
        """Freeze the first `n_tokens` rows; returns the lease and its ``(block, n_rows)`` in order."""
        rows = [
            (block, min(BLOCK, n_tokens - i * BLOCK))
            for i, block in enumerate(self._blocks[: -(-n_tokens // BLOCK)])
        ]
        return self._pool.lease(tuple(rows)), rows

    def _become(self, tokens: Tokens, first: int, blocks: list[int]) -> None:
        self._cut(first)
        for block in blocks:
            self._append(block)
        self._tokens[: len(tokens)] = tokens
        self._n_tokens = len(tokens)

    def _share(self, block: int) -> int:
        self._pool.hold(block)
        return block

    def _key(self, i: int, n_rows: int) -> bytes:
        return self._tokens[i * BLOCK : i * BLOCK + n_rows].tobytes()

    def _append(self, block: int) -> None:
        i = len(self._blocks)
        self._blocks.append(block)
        self._point(i, block)

    def _replace(self, i: int, block: int) -> None:
        self._pool.drop(self._blocks[i])
        self._blocks[i] = block
        self._point(i, block)

    def _point(self, i: int, block: int) -> None:
        for table, address in zip(self._tables, self._pool.addresses(block), strict=True):
            table[i] = address

    def _copy_tail(self, n_rows: int) -> None:
        i = self._n_tokens // BLOCK
        copy = self._index.allocate()
        self._pool.copy_rows(self._blocks[i], copy, n_rows)
        self._replace(i, copy)

    def _cut(self, n_blocks: int) -> None:
        while len(self._blocks) > n_blocks:
            self._pool.drop(self._blocks.pop())
        del self._nodes[n_blocks:]
