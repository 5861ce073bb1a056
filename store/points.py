"""Points: what a sequence remembers as of exactly n tokens; some models can go on only where one is.

Key in table `pnt`:  id of the last full block before n, or the root (32) | n % 256 as u16be | id of the point

Id and place follow from the prefix alone, so a look-up asks below each block of its chain which numbers of
rows there are, the most first, and for each of those whether the one point of its own prefix is there: how
many other conversations have points in the same place does not matter.
"""

from bisect import insort
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from store import chain
from store.chain import BLOCK, ELEMENT_BYTES, ID_BYTES
from store.environment import Environment, Txn
from store.errors import Damaged
from store.records import PointRecord


@dataclass(frozen=True, slots=True)
class PointRef:
    """A stored point: at `n_tokens` of the prompt, with the named `parts`. `key` is its place and id."""

    key: bytes
    n_tokens: int
    parts: frozenset[str]

    @property
    def id(self) -> bytes:
        return self.key[-ID_BYTES:]


Node = tuple[bytes, bytes]
"""A full block's id or the root, and the prompt's elements after it."""


def key_at(parent: bytes, rest: bytes) -> bytes:
    """Key of the point whose prefix ends with `rest` (fewer than 256 positions, or none) below `parent`."""
    n_rows = len(rest) // ELEMENT_BYTES
    return parent + n_rows.to_bytes(2, "big") + chain.point_id(parent, rest)


def key_of(record: PointRecord) -> bytes:
    return key_at(record.parent, record.elements)


def key_for(root: bytes, links: Sequence[tuple[bytes, bytes, bytes]], n_tokens: int) -> bytes:
    """Key of the point at `n_tokens` of the prefix whose blocks are `links` (see `chain.chain`)."""
    index, n_rows = divmod(n_tokens, BLOCK)
    rest = links[index][2][: n_rows * ELEMENT_BYTES] if n_rows else b""
    return key_at(links[index - 1][0] if index else root, rest)


def nodes_of(root: bytes, blocks: Sequence[tuple[bytes, bytes]]) -> list[Node]:
    """Where points of a prefix may lie, from its beginning; `blocks` are its ids and elements in order."""
    parents = [root, *(block for block, _ in blocks)]
    rests = [*(elements for _, elements in blocks), b""]
    if blocks and len(blocks[-1][1]) < BLOCK * ELEMENT_BYTES:
        parents.pop()
        rests.pop()
    return list(zip(parents, rests, strict=True))


def read_point(environment: Environment, txn: Txn, key: bytes) -> PointRecord | None:
    """The record of a point, None when there is none; raises `Damaged`."""
    if environment.pnt is None:
        return None
    value = txn.get(key, db=environment.pnt)
    return None if value is None else PointRecord.decode(key, value)


def all_points(environment: Environment, txn: Txn) -> Iterator[tuple[bytes, memoryview]]:
    """Keys and sealed records of all points."""
    if environment.pnt is not None:
        for key, value in txn.cursor(db=environment.pnt):
            yield bytes(key), value


def keys_below(environment: Environment, txn: Txn, parent: bytes) -> list[bytes]:
    """Keys of all points that lie right below a block or root."""
    found: list[bytes] = []
    if environment.pnt is None:
        return found
    cursor = txn.cursor(db=environment.pnt)
    if cursor.set_range(parent):
        for key in cursor.iternext(keys=True, values=False):
            if bytes(key[:ID_BYTES]) != parent:
                break
            found.append(bytes(key))
    return found


def points_of(
    environment: Environment, txn: Txn, nodes: Sequence[Node], damaged: list[bytes]
) -> Iterator[tuple[bytes, PointRecord]]:
    """``(key, record)`` of the points of one prefix, the farthest first.

    Ids of records that do not pass their checksum are appended to `damaged`.
    """
    if environment.pnt is None or not txn.stat(environment.pnt)["entries"]:
        return
    for parent, elements in reversed(nodes):
        for n_rows in _row_counts(environment, txn, parent, len(elements) // ELEMENT_BYTES):
            rest = elements[: n_rows * ELEMENT_BYTES]
            key = key_at(parent, rest)
            try:
                record = read_point(environment, txn, key)
            except Damaged:
                damaged.append(key[-ID_BYTES:])
                continue
            if record is not None and record.elements == rest and record.parent == parent:
                yield key, record


def _row_counts(environment: Environment, txn: Txn, parent: bytes, at_most: int) -> Iterator[int]:
    """Which numbers of rows, up to `at_most`, points right below `parent` have; the most first."""
    assert environment.pnt is not None
    cursor = txn.cursor(db=environment.pnt)
    below = at_most + 1
    while True:
        found = cursor.set_range(parent + below.to_bytes(2, "big"))
        if not (cursor.prev() if found else cursor.last()):
            return
        key = bytes(cursor.key())
        if key[:ID_BYTES] != parent:
            return
        below = int.from_bytes(key[ID_BYTES : ID_BYTES + 2], "big")
        yield below


def find(
    environment: Environment,
    txn: Txn,
    nodes: Sequence[Node],
    avoid: Callable[[bytes], bool],
    damaged: list[bytes],
    at_most: int,
) -> tuple[PointRef, ...]:
    """The farthest points of a prefix whose bytes are there, `at_most` of them."""
    found: list[PointRef] = []
    for key, record in points_of(environment, txn, nodes, damaged):
        if record.segments and not avoid(key[-ID_BYTES:]):
            found.append(PointRef(key, record.n_tokens, record.groups))
        if len(found) == at_most:
            break
    return tuple(found)


def thinned(
    stored: Collection[int], offered: Collection[int], fixed: Collection[int], at_most: int
) -> set[int]:
    """Which positions of one prefix to keep, when `offered` ones come to those `stored`.

    One after the other is added; beyond `at_most` the one goes without which the gaps stay most even: the sum
    of their squares grows least. The first and the last stay, and so do `fixed` ones. What is stored is
    preferred to what would have to be written, and the same offer again changes nothing.
    """
    kept = sorted(stored)
    _thin(kept, stored, fixed, at_most)
    while True:
        before = list(kept)
        for position in sorted(set(offered).difference(before)):
            insort(kept, position)
            _thin(kept, before, fixed, at_most)
        if kept == before:
            return set(kept)


def _thin(kept: list[int], preferred: Collection[int], fixed: Collection[int], at_most: int) -> None:
    def growth(i: int) -> tuple[int, bool, int]:
        return (kept[i] - kept[i - 1]) * (kept[i + 1] - kept[i]), kept[i] in preferred, i

    while len(kept) > at_most:
        inner = [i for i in range(1, len(kept) - 1) if kept[i] not in fixed]
        if not inner:
            return
        del kept[min(inner, key=growth)]
