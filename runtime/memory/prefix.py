"""The exact prefix index: which tokens are in which blocks.

A tree whose edges are blocks. A node stands for the tokens of one block after the tokens of its parent; full
blocks have children, a partial last block is a leaf. Keys are the tokens themselves: nothing is found by a
hash alone. Siblings are kept sorted by their bytes, because the sibling that shares the longest prefix with a
query is then next to the query's place, whatever their number; with each step away they share less.

Where a model has a tail, nodes also carry the points that were captured within their tokens.
"""

import itertools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from runtime.errors import PoolExhausted
from runtime.memory.layout import BLOCK
from runtime.memory.node import TOKEN_BYTES, Node
from runtime.memory.points import Point
from runtime.memory.pool import BlockPool
from runtime.memory.windows import Holder, shed

Tokens = npt.NDArray[np.int32]
Render = Callable[[Tokens], bytes]
"""The text that tokens stand for; that of a whole is that of its parts in a row."""

Usable = Callable[[Point], bool]

_BLOCK_BYTES = BLOCK * TOKEN_BYTES
# Evictions and empty roots are remembered only to say why a prefix is not there; forgetting them is harmless.
_REMEMBERED_EVICTIONS = 4096
_REMEMBERED_ROOTS = 64
_READ_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of some tokens.

    `nodes` are the full blocks on the way, `tail` is the node whose first `tail_rows` rows continue them.
    `diverges`: something cached goes on after the prefix, with other tokens.
    `evicted`: the block that would have come next was cached once and had to make room.
    """

    nodes: tuple[Node, ...] = ()
    tail: Node | None = None
    tail_rows: int = 0
    diverges: bool = False
    evicted: bool = False

    @property
    def n_tokens(self) -> int:
        return len(self.nodes) * BLOCK + self.tail_rows

    def cut(self, n_tokens: int) -> "Match":
        """The same prefix, but only its first `n_tokens` tokens."""
        if n_tokens >= self.n_tokens:
            return self
        n_full, tail_rows = divmod(n_tokens, BLOCK)
        tail = self.tail if n_full == len(self.nodes) else self.nodes[n_full]
        return Match(self.nodes[:n_full], tail if tail_rows else None, tail_rows)


class PrefixIndex:
    """Finds, keeps and evicts prefixes over a `BlockPool`, per `root`. Belongs to the pool's thread."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.point_bytes = 0
        self._roots: dict[bytes, Node] = {}
        # From the longest unused; a node is renewed after its children, so the oldest are leaves.
        self._by_age: OrderedDict[Node, None] = OrderedDict()
        self._live: WeakValueDictionary[int, Holder] = WeakValueDictionary()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._by_age)

    def __contains__(self, node: Node) -> bool:
        return node in self._by_age

    def watch(self, sequence: Holder) -> None:
        """Keep the rows that `sequence` sees, for as long as it is there."""
        self._live[next(self._numbers)] = sequence

    def allocate(self, without: Collection[int] = (), cleared: bool = True) -> int:
        """A block of the pool, `without` its parts in some groups; `PoolExhausted` if nothing can go for it.

        Rows of windows go first that no live sequence sees, then prefixes, from the longest unused. What the
        end of a prefix sees goes with the prefix, or when there is nothing else. See `BlockPool.allocate` for
        `cleared`.
        """
        while True:
            try:
                return self.pool.allocate(without, cleared)
            except PoolExhausted:
                if not (self._shed(without, keep_ends=True) or self.evict() or self._shed(without)):
                    raise

    def match(self, root: bytes, tokens: Tokens) -> Match:
        """The longest prefix of `tokens` whose rows are in memory, at any number of tokens."""
        node = self._roots.get(root)
        if node is None:
            return Match()
        data = np.ascontiguousarray(tokens, np.int32).tobytes()
        path: list[Node] = []
        while True:
            wanted = data[len(path) * _BLOCK_BYTES : (len(path) + 1) * _BLOCK_BYTES]
            best, rows = _closest(node, wanted)
            if best is None or rows < BLOCK:
                break
            path.append(best)
            node = best
        if best is not None:
            self._renew(best)
        for used in reversed(path):
            self._renew(used)
        n_wanted = len(wanted) // TOKEN_BYTES
        return Match(
            nodes=tuple(path),
            tail=best if rows else None,
            tail_rows=rows,
            diverges=bool(node.children) and rows < n_wanted and (best is None or best.n_rows > rows),
            evicted=hash(wanted) in node.evicted,
        )

    def match_point(self, root: bytes, tokens: Tokens, usable: Usable) -> tuple[Match, Point] | None:
        """The farthest `usable` point all of whose tokens `tokens` begin with, and the prefix up to it."""
        found = self.match(root, tokens)
        data = np.ascontiguousarray(tokens, np.int32).tobytes()
        for i in range(len(found.nodes), -1, -1):
            home = found.nodes[i - 1] if i else self._roots.get(root)
            if home is None:
                break
            wanted = data[i * _BLOCK_BYTES : (i + 1) * _BLOCK_BYTES]
            node, row = _farthest_point(home, wanted, self._with_windows(usable, found.nodes[:i]))
            if node is None:
                continue
            self._renew(node)
            for used in reversed(found.nodes[:i]):
                self._renew(used)
            if row == BLOCK:
                return Match((*found.nodes[:i], node)), node.points[row]
            return Match(found.nodes[:i], node, row), node.points[row]
        return None

    def _with_windows(self, usable: Usable, path: tuple[Node, ...]) -> Callable[[Node, Point], bool]:
        def both(node: Node, point: Point) -> bool:
            n = point.n_tokens
            return usable(point) and self.resumable(Match((*path, node)), n) == n

        return both if self.pool.layout.windowed else lambda _, point: usable(point)

    def find(self, root: bytes, parent: Node | None, key: bytes) -> Node | None:
        """The node after `parent` whose tokens begin with `key`."""
        home = parent if parent is not None else self._roots.get(root)
        if home is None:
            return None
        place = bisect_left(home.keys, key)
        known = place < len(home.keys) and home.keys[place].startswith(key)
        return home.children[place] if known else None

    def keep_point(self, node: Node, point: Point) -> Point:
        """Let the node carry a point within its tokens; returns the one it now has there.

        Of two equal ones that with logits is kept.
        """
        row = (point.n_tokens - 1) % BLOCK + 1
        known = node.points.get(row)
        if known is not None and (known.logits is not None or point.logits is None):
            return known
        if known is not None:
            self.drop_point(node, row)
        node.points[row] = point
        point.n_nodes += 1
        if point.n_nodes == 1:
            self.point_bytes += point.n_bytes
        return point

    def drop_point(self, node: Node, row: int) -> None:
        point = node.points.pop(row)
        point.n_nodes -= 1
        if not point.n_nodes:
            self.point_bytes -= point.n_bytes

    def insert(self, root: bytes, parent: Node | None, key: bytes, block: int) -> Node:
        """Index `block` as the rows of `key` after `parent` (None: at the start); returns the node for `key`.

        When the key, or for a partial block a longer one, is known already, the node that knows it is
        returned and `block` stays out of the index, unless it has all the rows of the node's block and more.
        Partial siblings that `key` continues are superseded, and their points are the node's.
        """
        home = parent if parent is not None else self._root(root)
        place = bisect_left(home.keys, key)
        if place < len(home.keys) and home.keys[place].startswith(key):
            known = home.children[place]
            self._renew(known)
            if known.key == key and self.pool.lacking(block) < self.pool.lacking(known.block):
                replaced, known.block = known.block, block
                self.pool.index_rows(block, known.n_rows)
                self.pool.index_rows(replaced, 0)
            return known
        node = Node(home, key, block)
        while place and key.startswith(home.keys[place - 1]):
            place -= 1
            for point in home.children[place].points.values():
                self.keep_point(node, point)
            self._detach(home, place)
        home.keys.insert(place, key)
        home.children.insert(place, node)
        self.pool.index_rows(block, node.n_rows)
        self._by_age[node] = None
        if parent is not None:
            self._renew(parent)
        return node

    def evict(self) -> bool:
        """Take the leaf that was unused the longest out of the index, if only the index holds its block."""
        for node in self._by_age:
            if not node.children and self.pool.evictable(node.block):
                home = node.parent
                assert home is not None
                if len(home.evicted) >= _REMEMBERED_EVICTIONS:
                    home.evicted.clear()
                home.evicted.add(hash(node.key))
                self._remove(node)
                return True
        return False

    def forget(self, root: bytes, tokens: Tokens) -> None:
        """Drop the part of a prefix that nothing else needs: from its leaf up to the first shared node."""
        found = self.match(root, tokens)
        path = list(found.nodes)
        if found.tail is not None and found.tail.n_rows == found.tail_rows:
            path.append(found.tail)
        while path and not path[-1].children and not self.pool.holders(path[-1].block):
            self._remove(path.pop())

    def forget_text(self, root: bytes, text: bytes, render: Render) -> int:
        """Drop all that begins with `text`, and of the way to it what nothing else needs.

        Blocks that a sequence holds stay. Returns how many went.
        """
        doomed: list[Node] = []
        path: list[Node] = []
        ahead = [(self._roots[root], text)] if root in self._roots else []
        while ahead:
            home, rest = ahead.pop()
            for node in home.children:
                n_read = read_along(np.frombuffer(node.key, np.int32), rest, render)
                if n_read == len(rest):
                    doomed.append(node)
                elif n_read is not None:
                    path.append(node)
                    ahead.append((node, rest[n_read:]))
        if not doomed:
            return 0
        for node in doomed:
            doomed += node.children
        n_before = len(self)
        for node in (*reversed(doomed), *reversed(path)):
            if not node.children and not self.pool.holders(node.block):
                self._remove(node)
        return n_before - len(self)

    def resumable(self, match: Match, limit: int) -> int:
        """The most tokens of the match, at most `limit`, whose windows are there: see `MemoryLayout`."""
        nodes = (*match.nodes, match.tail) if match.tail is not None else match.nodes
        return self.pool.resumable([node.block for node in nodes], min(limit, match.n_tokens))

    def nodes(self) -> list[Node]:
        """Every node, from the longest unused."""
        return list(self._by_age)

    def _shed(self, without: Collection[int], keep_ends: bool = False) -> bool:
        shortage = self.pool.shortage(without) if self.pool.has_free_block else 0
        return shortage > 0 and shed(self.pool, self._by_age, self._live.values(), shortage, keep_ends)

    def _root(self, root: bytes) -> Node:
        node = self._roots.get(root)
        if node is None:
            node = self._roots[root] = Node(None, root, -1)
        return node

    def _renew(self, node: Node) -> None:
        self._by_age.move_to_end(node)

    def _remove(self, node: Node) -> None:
        home = node.parent
        assert home is not None
        self._detach(home, bisect_left(home.keys, node.key))
        if home.parent is None and not home.children and len(self._roots) > _REMEMBERED_ROOTS:
            del self._roots[home.key]

    def _detach(self, home: Node, place: int) -> None:
        home.keys.pop(place)
        node = home.children.pop(place)
        del self._by_age[node]
        self.pool.index_rows(node.block, 0)
        for row in list(node.points):
            self.drop_point(node, row)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Number of leading tokens that are equal."""
    n = min(len(a), len(b))
    different = a[:n] != b[:n]
    first = int(different.argmax()) if n else 0
    return first if n and different[first] else n


def read_along(tokens: Tokens, text: bytes, render: Render) -> int | None:
    """How many bytes of `text` the tokens stand for, at most all; None when they say something else.

    Stops where that is known: most prompts differ within their first words.
    """
    n_read = 0
    for start in range(0, len(tokens), _READ_TOKENS):
        read = render(tokens[start : start + _READ_TOKENS])
        rest = text[n_read : n_read + len(read)]
        if not read.startswith(rest):
            return None
        n_read += len(rest)
        if n_read == len(text):
            break
    return n_read


def _closest(home: Node, wanted: bytes) -> tuple[Node | None, int]:
    """The child that shares the most leading tokens with `wanted`, and how many."""
    place = bisect_left(home.keys, wanted)
    query = np.frombuffer(wanted, np.int32)
    best, rows = None, 0
    for i in (place, place - 1):
        if 0 <= i < len(home.keys):
            shared = common_prefix(query, np.frombuffer(home.keys[i], np.int32))
            if shared > rows:
                best, rows = home.children[i], shared
    return best, rows


def _farthest_point(
    home: Node, wanted: bytes, usable: Callable[[Node, Point], bool]
) -> tuple[Node | None, int]:
    """The child with the farthest usable point within `wanted`, and its row.

    Children are looked at from the query's place outwards, for as long as they share more than that row.
    """
    place = bisect_left(home.keys, wanted)
    query = np.frombuffer(wanted, np.int32)
    best, best_row = None, 0
    for side in (range(place, len(home.keys)), range(place - 1, -1, -1)):
        shared = BLOCK
        for i in side:
            node = home.children[i]
            points = [(row, node.points[row]) for row in node.points if best_row < row <= shared]
            rows = [row for row, point in points if usable(node, point)]
            if not rows:
                continue
            shared = common_prefix(query, np.frombuffer(node.key, np.int32))
            if shared <= best_row:
                break
            row = max((row for row in rows if row <= shared), default=0)
            if row:
                best, best_row = node, row
    return best, best_row
