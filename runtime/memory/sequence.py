"""What one sequence remembers, as the engine sees it, and the implementation over blocks and a tail."""

from collections.abc import Collection
from typing import Protocol

import numpy as np
import numpy.typing as npt

from runtime.errors import PoolExhausted
from runtime.memory.layout import BLOCK
from runtime.memory.node import Node
from runtime.memory.points import Logits, Point, Tail
from runtime.memory.pool import Lease, Part
from runtime.memory.prefix import Match, PrefixIndex, Tokens
from runtime.memory.tail import NO_TAIL, TailAddresses

Tables = tuple[npt.NDArray[np.int64], ...]


class SequenceMemory(Protocol):
    """The memory of one sequence: rows for the first `n_tokens` of its `tokens`, and its tail at that token.

    A step goes ``reserve(n)`` → the runner writes through `tables` and `tail` → ``commit(tokens)``. What was
    reserved and not committed does not exist: a step that failed or was cancelled needs no undoing.
    Where `can_truncate` is False only a point leads back.
    """

    @property
    def n_tokens(self) -> int: ...

    @property
    def tokens(self) -> Tokens:
        """int32 [n_tokens], a view."""

    @property
    def tables(self) -> Tables:
        """Per cache group: int64 addresses of the blocks, one per 256 positions of the capacity."""

    @property
    def tail(self) -> TailAddresses:
        """Where the step that was reserved finds the tail."""

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
    somebody else relies on. Blocks may lose their rows of windows that the sequence does not see any more. A
    `private` sequence keeps its blocks and points out of the prefix index.
    `last_point` is where its newest point was captured or taken up, 0 for none.
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
        self._tail = Tail(self._pool.tails) if self._pool.tails is not None else None
        # Those of a private sequence, and of the last block until its tokens are in the index.
        self._own_points: dict[int, Point] = {}
        self.last_point = 0
        n_blocks = -(-capacity // BLOCK)
        self._tables = tuple(np.zeros(n_blocks, np.int64) for _ in self._pool.layout.groups)
        index.watch(self)

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
    def tail(self) -> TailAddresses:
        return NO_TAIL if self._tail is None else self._tail.addresses

    @property
    def has_tail(self) -> bool:
        return self._tail is not None

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(self._blocks)

    @property
    def own_points(self) -> tuple[Point, ...]:
        """Points that the index may not have."""
        return tuple(self._own_points.values())

    def adopt(self, match: Match, tokens: Tokens, point: Point | None = None) -> None:
        """Become the sequence of ``tokens[:match.n_tokens]`` found in the index, `point` being its end's."""
        nodes = [*match.nodes, match.tail] if match.tail is not None else [*match.nodes]
        self._become(tokens[: match.n_tokens], 0, [self._share(node.block) for node in nodes])
        self._nodes = list(match.nodes)
        if point is not None:
            self._load(point)
            if match.tail is not None:
                shared = (p for row, p in match.tail.points.items() if row <= match.tail_rows)
                self._own_points = {p.n_tokens: p for p in shared}

    def graft(self, tokens: Tokens, first: int, blocks: list[int], point: Point | None = None) -> None:
        """Become the sequence of `tokens`, its blocks from `first` on replaced by `blocks`.

        The blocks already count this sequence as a holder; their rows must be those of `tokens`, and `point`
        that of their end, which is kept.
        """
        self._become(tokens, first, blocks)
        self.publish()
        if point is not None:
            self._load(point)
            self._keep(point)

    def has_windows(self, n_tokens: int) -> bool:
        """Are the rows there that going on at `n_tokens` sees?"""
        return self._pool.resumable(self._blocks, n_tokens) == n_tokens

    def can_truncate(self, n_tokens: int) -> bool:
        if not 0 <= n_tokens < self._n_tokens:
            return n_tokens == self._n_tokens
        return self.has_windows(n_tokens) and (self._tail is None or self._tail.can_return(n_tokens))

    def truncatable(self, limit: int) -> int:
        """The most tokens, at most `limit`, that the sequence can be truncated to without a point."""
        if limit >= self._n_tokens:
            return self._n_tokens
        if self._tail is None:
            return self._pool.resumable(self._blocks, limit)
        ways = (limit, self._tail.n_previous)
        return max((n for n in ways if n <= limit and self.can_truncate(n)), default=0)

    def truncate(self, n_tokens: int) -> None:
        if not self.can_truncate(n_tokens):
            raise ValueError(f"cannot truncate a sequence of {self._n_tokens} tokens to {n_tokens}")
        if self._tail is not None and n_tokens < self._n_tokens:
            self._tail.return_to(n_tokens)
        self._shorten(n_tokens)

    def clear(self) -> None:
        self.truncate(0)
        if self._tail is not None:
            # What was reserved for a step goes as well.
            self._tail.clear()

    def return_to(self, point: Point) -> None:
        """Go back to a point of this sequence."""
        self._shorten(point.n_tokens)
        self._load(point)

    def capture(self, logits: Logits | None = None) -> Point:
        """The point at this very token, which must not be the first; captured unless it is known.

        `logits` f32 [n_vocab], if given, are those after the last token. Whoever has the point keeps it; the
        index, or a private sequence, keeps it too.
        """
        known = self.point_here()
        if known is None or (known.logits is None and logits is not None):
            known = self._keep(self.snapshot(logits))
        self.last_point = self._n_tokens
        return known

    def snapshot(self, logits: Logits | None = None) -> Point:
        """As `capture`, but nobody else keeps it."""
        assert self._tail is not None
        return self._tail.capture(self._n_tokens, logits)

    def point_here(self) -> Point | None:
        """The point that is kept of this very token."""
        return next((point for point in reversed(self.points()) if point.n_tokens == self._n_tokens), None)

    def points(self) -> list[Point]:
        """Those within the sequence that the index or the sequence itself keeps, in order."""
        indexed = {point.n_tokens: point for point in self._indexed_points()}
        return [point for _, point in sorted((self._own_points | indexed).items())]

    def drop_point(self, n_tokens: int) -> None:
        """Keep the point at `n_tokens` no longer; whoever was lent it still has it.

        A private sequence leaves to the index what others put there.
        """
        self._own_points.pop(n_tokens, None)
        for node in () if self.private else self._point_nodes():
            row = (n_tokens - 1) % BLOCK + 1
            if row in node.points and node.points[row].n_tokens == n_tokens:
                self._index.drop_point(node, row)

    def fork(self) -> "BlockSequence":
        twin = BlockSequence(self._index, self.root, self.capacity, self.private)
        shared = self._blocks[: -(-self._n_tokens // BLOCK)]
        twin._become(self.tokens, 0, [self._share(block) for block in shared])
        twin._nodes = self._nodes.copy()
        twin.last_point, twin._own_points = self.last_point, self._own_points.copy()
        if twin._tail is not None and self._n_tokens:
            twin._tail.load(self.snapshot())
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
        if self._tail is not None:
            self._tail.reserve(end)

    def commit(self, tokens: Tokens) -> None:
        start = self._n_tokens
        if self._tail is not None:
            self._tail.commit(start)
        self._n_tokens = start + len(tokens)
        self._tokens[start : self._n_tokens] = tokens
        if self._n_tokens // BLOCK > start // BLOCK:
            self.publish()

    def publish(self) -> None:
        """Index the full blocks that are not yet; a block that is known already replaces the own one.

        It does so if it has all the rows that the own one has. Own points within them go along.
        """
        if self.private:
            return
        while self._nodes and self._nodes[-1] not in self._index:
            # A block with more rows of windows stood for it, nobody held that, and it went.
            self._nodes.pop()
        while len(self._nodes) < self._n_tokens // BLOCK:
            i = len(self._nodes)
            parent = self._nodes[-1] if self._nodes else None
            own = self._blocks[i]
            node = self._index.insert(self.root, parent, self._key(i, BLOCK), own)
            if node.block != own and self._pool.lacking(node.block) <= self._pool.lacking(own):
                self._replace(i, self._share(node.block))
            self._nodes.append(node)
        for i in {(n - 1) // BLOCK for n in self._own_points}:
            if i < len(self._nodes):
                self._hand_over(i, self._nodes[i])

    def publish_tail(self) -> None:
        """Index the partial last block as well, so that others find the sequence up to its last token."""
        if not self.private and self._n_tokens % BLOCK:
            self.publish()
            self._publish_tail()

    def own_tail(self) -> int:
        """The partial last block; it is copied first if somebody else needs rows of it after `n_tokens`.

        `PoolExhausted` leaves the sequence as it was.
        """
        row = self._n_tokens % BLOCK
        i = self._n_tokens // BLOCK
        if not self._pool.appendable(self._blocks[i], row):
            self._copy_tail(row)
        return self._blocks[i]

    def lease(self, n_tokens: int, withheld: Collection[Part] = ()) -> tuple[Lease, list[tuple[int, int]]]:
        """Freeze the first `n_tokens` rows; returns the lease and its ``(block, n_rows)`` in order.

        Parts of windows that are not there, or `withheld`, it does not hold.
        """
        rows = [
            (block, min(BLOCK, n_tokens - i * BLOCK))
            for i, block in enumerate(self._blocks[: -(-n_tokens // BLOCK)])
        ]
        return self._pool.lease(tuple(rows), withheld), rows

    def _publish_tail(self) -> Node:
        i, row = divmod(self._n_tokens, BLOCK)
        parent = self._nodes[-1] if self._nodes else None
        node = self._index.insert(self.root, parent, self._key(i, row), self._blocks[i])
        self._hand_over(i, node)
        return node

    def _hand_over(self, i: int, node: Node) -> None:
        """Own points within block `i` go to its node."""
        for n in [n for n in self._own_points if (n - 1) // BLOCK == i]:
            self._index.keep_point(node, self._own_points.pop(n))

    def _load(self, point: Point) -> None:
        assert self._tail is not None
        self._tail.load(point)
        self.last_point = point.n_tokens

    def _keep(self, point: Point) -> Point:
        if self.private:
            self._own_points[point.n_tokens] = point
            return point
        self.publish()
        node = self._publish_tail() if self._n_tokens % BLOCK else self._nodes[-1]
        return self._index.keep_point(node, point)

    def _point_nodes(self) -> list[Node]:
        """The nodes that may carry points of this sequence; the last may go on with other tokens after it."""
        i = len(self._nodes)
        n_rows = self._n_tokens - i * BLOCK
        parent = self._nodes[-1] if self._nodes else None
        leaf = self._index.find(self.root, parent, self._key(i, n_rows)) if 0 < n_rows < BLOCK else None
        return self._nodes if leaf is None else [*self._nodes, leaf]

    def _indexed_points(self) -> list[Point]:
        if self._tail is None:
            return []
        points = (point for node in self._point_nodes() for point in node.points.values())
        return [point for point in points if point.n_tokens <= self._n_tokens]

    def _shorten(self, n_tokens: int) -> None:
        first = n_tokens // BLOCK * BLOCK
        left = [point for point in self._indexed_points() if first < point.n_tokens <= n_tokens]
        self._n_tokens = n_tokens
        self._cut(-(-n_tokens // BLOCK))
        del self._nodes[n_tokens // BLOCK :]
        # Going on with other tokens leads away from the node that carries them.
        self._own_points |= {point.n_tokens: point for point in left}
        for n in [n for n in self._own_points if n > n_tokens]:
            del self._own_points[n]
        if self.last_point > n_tokens:
            self.last_point = max((point.n_tokens for point in self.points()), default=0)

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
