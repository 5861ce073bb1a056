"""A node of the prefix index."""

from runtime.memory.layout import BLOCK
from runtime.memory.points import Point

TOKEN_BYTES = 4


class Node:
    """One block's tokens (`key`, int32 bytes) in their context, and the block that holds their rows.

    `points` are those after its first 1..256 tokens, by that number; `index` counts the blocks before it. The
    root of a tree has no parent and no block; its key is the name of the root.
    """

    __slots__ = ("block", "children", "evicted", "index", "key", "keys", "parent", "points")

    def __init__(self, parent: "Node | None", key: bytes, block: int) -> None:
        self.parent = parent
        self.key = key
        self.block = block
        self.index: int = parent.index + 1 if parent is not None else -1
        self.keys: list[bytes] = []
        self.children: list[Node] = []
        self.evicted: set[int] = set()
        self.points: dict[int, Point] = {}

    @property
    def n_rows(self) -> int:
        return len(self.key) // TOKEN_BYTES

    @property
    def end(self) -> int:
        """The number of tokens up to the node's last."""
        return self.index * BLOCK + self.n_rows

    def points_behind(self) -> list[tuple["Node", int]]:
        """The points on the way from the root to this node's end, each as its node and row, in order."""
        path, node = [self], self
        while node.parent is not None:
            node = node.parent
            path.append(node)
        return [(node, row) for node in reversed(path) for row in sorted(node.points)]
