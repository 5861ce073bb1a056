"""Finding what is stored of a prompt, and where its bytes are. Both inside one short read transaction."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from store import branches, chain, parts, points
from store.environment import Environment, Txn
from store.errors import Damaged, Gone
from store.points import PointRef
from store.records import BlockRecord, SegmentRecord
from store.update import Segment, read_block

MAX_POINTS = 16
Cause = Literal["", "differs", "absent", "damaged"]


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A stored block that serves positions ``256 * index .. 256 * index + n_rows`` of the prompt.

    `n_rows` may be fewer than the record has: a row-prefix of a block is valid. `groups` are the cache groups
    whose bytes are there.
    """

    id: bytes
    index: int
    n_rows: int
    groups: frozenset[str]


@dataclass(frozen=True, slots=True)
class Match:
    """The longest restorable prefix: `n_tokens` positions in `blocks`, and `reason`, why it ends there.

    `cause` is the reason in a word, empty when all was found. `points` are the farthest ones within it, the
    farthest first, at most 16.
    """

    n_tokens: int
    blocks: tuple[BlockRef, ...]
    reason: str
    points: tuple[PointRef, ...] = ()
    cause: Cause = ""


class Finder:
    """One look-up. `damaged` collects the ids of records that do not pass their checksum.

    `known` are records that were decoded of this state of the store already, and gets further ones.
    """

    def __init__(
        self,
        environment: Environment,
        txn: Txn,
        avoid: Callable[[bytes], bool],
        known: dict[bytes, BlockRecord],
    ) -> None:
        self._env = environment
        self._txn = txn
        self._avoid = avoid
        self._known = known
        self.damaged: list[bytes] = []

    def find(self, root: bytes, elements: bytes) -> Match:
        """The longest prefix of `elements` below `root` whose bytes are there.

        Equal blocks are found by the hash chain and compared; below the last of them the record with the most
        common rows decides. Stops hashing at the first block that is not stored.
        """
        refs: list[BlockRef] = []
        last: BlockRef | None = None
        parent = root
        for index, part in enumerate(chain.split(elements)):
            block = chain.block_id(parent, part)
            record = self._usable(block)
            if record is None or record.elements != part:
                last = self._partial(parent, index, part)
                break
            refs.append(BlockRef(block, index, record.n_rows, record.groups))
            parent = block
        blocks = (*refs, last) if last else tuple(refs)
        n_tokens = sum(ref.n_rows for ref in blocks)
        known = chain.split(elements[: n_tokens * chain.ELEMENT_BYTES])
        nodes = points.nodes_of(root, [(ref.id, part) for ref, part in zip(blocks, known, strict=True)])
        found = points.find(self._env, self._txn, nodes, self._avoid, self.damaged, MAX_POINTS)
        cause, reason = self._reason(n_tokens, last, elements)
        return Match(n_tokens, blocks, reason, found, cause)

    def _usable(self, block: bytes) -> BlockRecord | None:
        if self._avoid(block):
            return None
        try:
            record = known_block(self._env, self._txn, block, self._known)
        except Damaged:
            self.damaged.append(block)
            return None
        return record if record is not None and record.is_restorable else None

    def _partial(self, parent: bytes, index: int, part: bytes) -> BlockRef | None:
        found = branches.nearest(
            self._txn, self._env.kid, parent, part, lambda block: self._usable(block) is not None
        )
        record = self._usable(found[0]) if found else None
        if found is None or record is None or record.parent != parent:
            return None
        n_rows = chain.common_positions(record.elements, part)
        return BlockRef(found[0], index, n_rows, record.groups) if n_rows else None

    def _reason(self, n_tokens: int, last: BlockRef | None, elements: bytes) -> tuple[Cause, str]:
        if n_tokens * chain.ELEMENT_BYTES == len(elements):
            return "", "all of it is stored"
        if self.damaged:
            return "damaged", f"what is stored from token {n_tokens} on is damaged"
        if last:
            return "differs", f"the stored text differs or ends at token {n_tokens}"
        return "absent", f"nothing is stored from token {n_tokens} on"


def known_block(
    environment: Environment, txn: Txn, block: bytes, known: dict[bytes, BlockRecord]
) -> BlockRecord | None:
    """The record of a block, of those `known` or to be one of them; raises `Damaged`."""
    record = known.get(block)
    if record is None and (record := read_block(environment, txn, block)) is not None:
        known[block] = record
    return record


def pieces_of_block(
    environment: Environment,
    txn: Txn,
    ref: BlockRef,
    wanted: Sequence[Segment],
    scratch: Callable[[], parts.Bytes],
) -> Iterator[parts.Piece]:
    """What to copy for the destinations in `wanted`: the first bytes of the block's segments.

    A destination may be shorter than what is stored, not longer. Raises `Gone` for what is missing or of
    another layout before the first of them, `Damaged` also later.
    """
    record = known_block(environment, txn, ref.id, environment.memo(txn))
    name = f"block {ref.index}"
    if record is None or not record.is_restorable:
        raise Gone(f"{name} was evicted")
    yield from _pieces(environment, txn, ref.id, name, "the cache group", record.segments, wanted, scratch)


def pieces_of_point(
    environment: Environment,
    txn: Txn,
    ref: PointRef,
    wanted: Sequence[Segment],
    scratch: Callable[[], parts.Bytes],
) -> Iterator[parts.Piece]:
    """What to copy for the destinations in `wanted`: whole parts of a point.

    Otherwise as `pieces_of_block`.
    """
    record = points.read_point(environment, txn, ref.key)
    name = f"the point at {ref.n_tokens}"
    if record is None or not record.segments:
        raise Gone(f"{name} was evicted")
    sizes = {segment.group: segment.n_bytes for segment in record.segments}
    if any(sizes.get(want.group, want.data.size) != want.data.size for want in wanted):
        raise Gone(f"{name} has another layout")
    yield from _pieces(environment, txn, ref.id, name, "its part", record.segments, wanted, scratch)


def _pieces(
    environment: Environment,
    txn: Txn,
    id_: bytes,
    name: str,
    kind: str,
    stored: Sequence[SegmentRecord],
    wanted: Sequence[Segment],
    scratch: Callable[[], parts.Bytes],
) -> Iterator[parts.Piece]:
    segments = {segment.group: segment for segment in stored}
    for want in wanted:
        segment = segments.get(want.group)
        if segment is None:
            raise Gone(f"{name} lacks {kind} {want.group}")
        if segment.layout_id != want.layout_id or segment.n_bytes < want.data.size:
            raise Gone(f"{name} has another layout")
    for want in wanted:
        yield from parts.pieces_of(txn, environment.dat, id_, segments[want.group], want.data, scratch)
