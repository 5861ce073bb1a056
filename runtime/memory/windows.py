"""Which rows of windowed layers go first when memory is short.

Rows that no live sequence sees any more stay for as long as there is room: a prefix can be resumed wherever
its window is there. When there is none, they go so that the places to resume at stay evenly spread. A prefix
is cut into runs of as many blocks as cover the windows of a whole block's positions. Every second run goes
first, then every second of those that are left, and so on; of runs of one rank first those of the prefix that
was unused the longest.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from runtime.memory.node import Node
from runtime.memory.pool import BlockPool, Part

_FIRST_RUN = 64


class Holder(Protocol):
    """A live sequence: it needs what going on at `n_tokens` sees, and all that comes after."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def blocks(self) -> tuple[int, ...]: ...


def shed(
    pool: BlockPool, by_age: Iterable[Node], live: Iterable[Holder], n_bytes: int, keep_ends: bool
) -> bool:
    """Give back parts that no live sequence needs until that is `n_bytes`; returns whether any went.

    `by_age` are the nodes of the index from the longest unused. `keep_ends`: not what ends of prefixes see.
    """
    n_left = n_bytes
    for group, block in _in_order(pool, list(by_age), list(live), keep_ends):
        if n_left <= 0:
            break
        n_left -= pool.give_back(group, block)
    return n_left < n_bytes


def _in_order(pool: BlockPool, nodes: list[Node], live: list[Holder], keep_ends: bool) -> Iterator[Part]:
    """The parts that may go, the first to go first."""
    kept = {part for sequence in live for part in _needed(pool, sequence)}
    if keep_ends:
        kept |= {part for node in nodes if not node.children for part in _seen_from_end(pool, node)}
    indexed = {node.block for node in nodes}
    alone = dict.fromkeys(block for sequence in live for block in sequence.blocks if block not in indexed)
    ranked: list[tuple[int, Part]] = [(-1, (g, block)) for block in alone for g in pool.layout.windowed]
    for g in pool.layout.windowed:
        n = pool.layout.groups[g].run_blocks
        ranked += ((_rank(node.index // n), (g, node.block)) for node in nodes)
    ranked.sort(key=lambda entry: entry[0])
    return (part for _, part in ranked if part not in kept and pool.can_give_back(*part))


def _needed(pool: BlockPool, sequence: Holder) -> Iterator[Part]:
    for g in pool.layout.windowed:
        first = pool.layout.groups[g].first_block(sequence.n_tokens)
        yield from ((g, block) for block in sequence.blocks[first:])


def _seen_from_end(pool: BlockPool, leaf: Node) -> Iterator[Part]:
    for g in pool.layout.windowed:
        first = pool.layout.groups[g].first_block(leaf.end)
        node: Node | None = leaf
        while node is not None and node.index >= first:
            yield g, node.block
            node = node.parent


def _rank(run: int) -> int:
    """How often the number of a run can be halved; the first run outlasts all others."""
    return (run & -run).bit_length() - 1 if run else _FIRST_RUN
