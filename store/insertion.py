"""Putting the blocks of one offered prefix into the store, within write transactions of bounded size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from store import chain, points
from store.environment import Environment, Txn
from store.errors import WriteRefused
from store.manifests import ManifestInfo
from store.records import BlockRecord, PointRecord
from store.requests import BlockData, Outcome, PointData, WriteRequest, WriteResult
from store.update import Evicted, Segment, Update, read_block, read_usage

GiveName = Callable[[Update], tuple[ManifestInfo, list[bytes]]]
"""See `manifests.save`."""


@dataclass(slots=True)
class Progress:
    """How far the writing of a request has come: `done` of its steps are committed.

    `last` is the record that the last of them wrote or found. `kept` are the offered points that are to be
    stored, None until that is decided. `saved` is the save that it became, which holds the ids `held`;
    `refused` says why it did not.
    """

    done: int = 0
    kept: frozenset[int] | None = None
    last: bytes = b""
    n_tokens: int = 0
    written: int = 0
    shared: int = 0
    reason: str = ""
    saved: ManifestInfo | None = None
    held: Sequence[bytes] = ()
    refused: str = ""


def _place_in_order(step: BlockData | PointData) -> tuple[int, int]:
    if isinstance(step, BlockData):
        return step.index, 0
    return (step.n_tokens - 1) // chain.BLOCK, step.n_tokens


@dataclass(eq=False)
class Job:
    """A queued request. The chain is computed when the writer comes to it, not on the thread that offers.

    Of one prefix at most `max_points` points are kept. `give_name` makes it a save.
    """

    request: WriteRequest
    fingerprint: bytes
    elements: bytes
    n_bytes: int
    progress: Progress = field(default_factory=Progress)
    started: bool = False
    recalled: bool = False
    max_points: int = 8
    give_name: GiveName | None = None
    _links: list[tuple[bytes, bytes, bytes]] | None = None

    @cached_property
    def steps(self) -> tuple[BlockData | PointData, ...]:
        """What is to be written, in order: each point right after the block that its last token is in."""
        steps: list[BlockData | PointData] = [*self.request.blocks, *self.request.points]
        return tuple(sorted(steps, key=_place_in_order))

    @property
    def links(self) -> list[tuple[bytes, bytes, bytes]]:
        """``(id, parent, elements)`` of each block of the prefix."""
        if self._links is None:
            self._links = chain.chain(self.request.root, self.elements)
        return self._links

    @cached_property
    def ids(self) -> frozenset[bytes]:
        """Of the blocks of the prefix, and of the points offered."""
        root, links = self.request.root, self.links
        keys = (points.key_for(root, links, point.n_tokens) for point in self.request.points)
        return frozenset((*(block for block, _, _ in links), *(key[-chain.ID_BYTES :] for key in keys)))

    @property
    def is_save(self) -> bool:
        return self.request.why == "save"

    def is_complete(self, progress: Progress) -> bool:
        """True when nothing is left to write, or nothing can be."""
        return bool(progress.reason) or progress.done == len(self.steps)

    def result(self) -> WriteResult:
        """The answer for a job that came to its end."""
        p = self.progress
        outcome = Outcome.FAILED if p.reason else Outcome.WRITTEN
        return WriteResult(outcome, p.n_tokens, p.written, p.shared, p.reason or p.refused, p.saved)


def missing_bytes(environment: Environment, txn: Txn, job: Job) -> list[int]:
    """Sizes of the blocks and points, or of their parts, that are still to be written for `job`, in order."""
    kept = job.progress.kept
    if kept is None and job.request.points:
        kept = frozenset(_choose(environment, txn, job)[0])
    sizes = []
    for step in job.steps[job.progress.done :]:
        if isinstance(step, BlockData):
            block = read_block(environment, txn, job.links[step.index][0])
            size = step.n_bytes if block is None else _n_bytes(_lacking(block, step.segments))
        elif step.n_tokens in (kept or ()):
            key = points.key_for(job.request.root, job.links, step.n_tokens)
            point = points.read_point(environment, txn, key)
            size = step.n_bytes if point is None else _n_bytes(_lacking(point, step.parts))
        else:
            size = 0
        if size:
            sizes.append(size)
    return sizes


def _lacking(record: BlockRecord | PointRecord, given: Sequence[Segment]) -> list[Segment]:
    """Those of `given` that a known block or point lacks: they were never written, or quarantined."""
    return [segment for segment in given if segment.group not in record.groups]


def _n_bytes(segments: Sequence[Segment]) -> int:
    return sum(segment.data.size for segment in segments)


def put_next(
    update: Update, job: Job, progress: Progress, is_pinned: Callable[[bytes], bool], distrusted: set[bytes]
) -> int:
    """Take the next step of `job` and advance `progress`; return the bytes written.

    With the last of them it gets its name.
    """
    step = job.steps[progress.done]
    if isinstance(step, BlockData):
        written = _put_block(update, job, step, progress, is_pinned, distrusted)
    else:
        written = _put_point(update, job, step, progress, is_pinned, distrusted)
    if progress.reason:
        return 0
    progress.done += 1
    progress.written += written
    progress.shared += step.n_bytes - written
    if job.give_name is not None and job.is_complete(progress):
        try:
            progress.saved, progress.held = job.give_name(update)
        except WriteRefused as error:
            progress.refused = str(error)
    return written


def _put_block(
    update: Update,
    job: Job,
    given: BlockData,
    progress: Progress,
    is_pinned: Callable[[bytes], bool],
    distrusted: set[bytes],
) -> int:
    """Write a block; return the bytes written.

    A block that is there is only touched. A leaf that a longer record covers is not written; a leaf that the
    new record covers goes, unless a save or a reader holds it.
    """
    block, parent, _ = job.links[given.index]
    if block in distrusted:
        update.hollow_block(block)
        distrusted.discard(block)
    record = update.block(block)
    written = 0
    progress.last = block
    if record is not None:
        missing = _lacking(record, given.segments)
        if missing:
            update.fill_block(block, record, missing)
            written = _n_bytes(missing)
        update.touch(block, update.now_ms, 0)
    elif given.index and update.block(parent) is None:
        progress.reason = f"block {given.index - 1} is not stored"
        return 0
    else:
        progress.last, written = _put_new(update, job, given, is_pinned)
    progress.n_tokens = given.index * chain.BLOCK + given.n_rows
    return written


def _put_point(
    update: Update,
    job: Job,
    given: PointData,
    progress: Progress,
    is_pinned: Callable[[bytes], bool],
    distrusted: set[bytes],
) -> int:
    """Write a point if it is one of those to keep; return the bytes written.

    With the first point of a request it is decided which those are, and stored ones make room.
    """
    if progress.kept is None:
        kept, superfluous = _choose(update.environment, update.txn, job)
        progress.kept = frozenset(kept)
        for key in superfluous:
            record = update.point(key)
            if record is not None and not is_pinned(key[-chain.ID_BYTES :]):
                update.remove_point(key, record)
    if given.n_tokens not in progress.kept:
        return 0
    key = points.key_for(job.request.root, job.links, given.n_tokens)
    id_ = progress.last = key[-chain.ID_BYTES :]
    if id_ in distrusted:
        update.drop_damaged_point(key)
        distrusted.discard(id_)
    record = update.point(key)
    if record is not None:
        missing = _lacking(record, given.parts)
        if missing:
            update.fill_point(key, record, missing)
        update.touch(id_, update.now_ms, 0)
        return _n_bytes(missing)
    index, n_rows = divmod(given.n_tokens, chain.BLOCK)
    parent = job.links[index - 1][0] if index else job.request.root
    if index and update.block(parent) is None:
        progress.reason = f"block {index - 1} is not stored"
        return 0
    rest = job.links[index][2][: n_rows * chain.ELEMENT_BYTES] if n_rows else b""
    bare = PointRecord(job.fingerprint[:8], parent, given.n_tokens, rest, (), update.now_ms)
    update.add_point(bare, given.parts)
    return given.n_bytes


def _choose(environment: Environment, txn: Txn, job: Job) -> tuple[set[int], list[bytes]]:
    """Which positions to have points at along the prefix of `job`, and the keys of those to remove."""
    nodes = points.nodes_of(job.request.root, [(block, part) for block, _, part in job.links])
    stored: dict[int, bytes] = {}
    fixed = set()
    for key, record in points.points_of(environment, txn, nodes, []):
        usage = read_usage(environment, txn, key[-chain.ID_BYTES :])
        stored[record.n_tokens] = key
        if usage is None or not usage.evictable:
            fixed.add(record.n_tokens)
    offered = [point.n_tokens for point in job.request.points]
    kept = points.thinned(stored, offered, fixed, job.max_points)
    return kept, [key for n_tokens, key in stored.items() if n_tokens not in kept]


def _put_new(
    update: Update, job: Job, given: BlockData, is_pinned: Callable[[bytes], bool]
) -> tuple[bytes, int]:
    """The record that has the rows now, and the bytes written.

    A leaf goes when the new record has all that it has. With more cache groups it is where to go on from.
    """
    block, parent, elements = job.links[given.index]
    wanted = {segment.group for segment in given.segments}

    def usable(candidate: bytes) -> bool:
        found = update.block(candidate)
        return found is not None and found.is_restorable and wanted <= found.groups

    near = update.nearest(parent, elements, usable)
    neighbour = update.block(near[0]) if near else None
    if near and neighbour and near[1] == given.n_rows:
        update.touch(near[0], update.now_ms, 0)
        return near[0], 0
    bare = BlockRecord(
        job.fingerprint[:8], parent, given.index, elements, (), update.now_ms, rowless=not given.segments
    )
    update.add_block(block, bare, given.segments, parent_is_root=given.index == 0)
    covered = neighbour is not None and neighbour.is_leaf and neighbour.groups <= wanted
    if near and neighbour and covered and near[1] == neighbour.n_rows:
        usage = update.usage(near[0])
        if usage.evictable and not is_pinned(near[0]):
            update.remove_block(near[0], neighbour)
    return block, given.n_bytes


def evict(update: Update, down_to: int, is_pinned: Callable[[bytes], bool], at_most: int) -> Evicted:
    """Remove the least valuable blocks and points until `down_to` live bytes remain.

    A block goes after everything below it, so what survives always has
    its whole prefix. Stops after `at_most` of them, to keep the transaction short, or when all that is left
    is held.
    """
    before = update.ledger
    for _ in range(at_most):
        if update.ledger.live_bytes <= down_to:
            break
        victim = next((id_ for id_ in update.eviction_order() if not is_pinned(id_)), None)
        if victim is None:
            break
        update.remove(victim)
    return update.evicted_since(before)
