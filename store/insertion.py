"""Putting the blocks of one offered prefix into the store, within write transactions of bounded size."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from store import chain
from store.chain import Tokens
from store.errors import Damaged
from store.records import BlockRecord
from store.update import Segment, Update

MAX_BLOCK_BYTES = 1 << 30
MAX_LABEL = 512


class Outcome(StrEnum):
    WRITTEN = "written"
    DROPPED = "dropped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of an offer: its prefix is stored up to `n_tokens`.

    `bytes_written` are new, `bytes_shared` were there already. `reason` is empty when all went well.
    """

    outcome: Outcome
    n_tokens: int = 0
    bytes_written: int = 0
    bytes_shared: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BlockData:
    """Lent bytes of one block: `index` counts blocks of 256, the first `n_rows` positions are valid."""

    index: int
    n_rows: int
    segments: tuple[Segment, ...]

    @property
    def n_bytes(self) -> int:
        return sum(segment.data.size for segment in self.segments)


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A prefix offered for writing: blocks of ``tokens`` (integers [n]) below `root`, in ascending order.

    Blocks that are not given must be stored already. The views are read by the writer thread until `on_done`
    is called, exactly once, on whatever thread settles the matter. `why` "save" is never dropped for lack of
    room in the queue.
    """

    root: bytes
    tokens: Tokens
    blocks: tuple[BlockData, ...]
    why: str
    on_done: Callable[[WriteResult], None]

    def check(self) -> None:
        """Raises ValueError for what the caller got wrong."""
        end = len(self.tokens)
        previous = -1
        if not self.blocks:
            raise ValueError("an offer without blocks")
        for block in self.blocks:
            start = block.index * chain.BLOCK
            full = min(chain.BLOCK, end - start)
            if block.index <= previous or block.n_rows != full:
                raise ValueError(f"block {block.index} with {block.n_rows} rows does not fit {end} tokens")
            previous = block.index
            if not block.segments or block.n_bytes > MAX_BLOCK_BYTES:
                raise ValueError(f"block {block.index} has {block.n_bytes} bytes")
            for segment in block.segments:
                data = segment.data
                if data.ndim != 1 or data.dtype != "u1" or not data.flags.c_contiguous or not data.size:
                    raise ValueError(f"segment {segment.group} is not contiguous bytes")
                if segment.unit_bytes <= 0:
                    raise ValueError(f"segment {segment.group} has units of {segment.unit_bytes} bytes")
                if len(segment.group) + len(segment.layout_id) > MAX_LABEL:
                    raise ValueError(f"segment {segment.group[:20]} has too long a name or layout id")
            if len({segment.group for segment in block.segments}) != len(block.segments):
                raise ValueError(f"block {block.index} has a cache group twice")


@dataclass(slots=True)
class Progress:
    """How far the writing of a request has come: `done` of its blocks are committed.

    `last` is the record that keeps the rows of the last of them.
    """

    done: int = 0
    last: bytes = b""
    n_tokens: int = 0
    written: int = 0
    shared: int = 0
    reason: str = ""


@dataclass(slots=True, eq=False)
class Job:
    """A queued request. The chain is computed when the writer comes to it, not on the thread that offers."""

    request: WriteRequest
    fingerprint: bytes
    elements: bytes
    n_bytes: int
    progress: Progress = field(default_factory=Progress)
    started: bool = False
    _links: list[tuple[bytes, bytes, bytes]] | None = None

    @property
    def links(self) -> list[tuple[bytes, bytes, bytes]]:
        """``(id, parent, elements)`` of each block of the prefix."""
        if self._links is None:
            self._links = chain.chain(self.request.root, self.elements)
        return self._links

    @property
    def is_save(self) -> bool:
        return self.request.why == "save"

    def is_complete(self, progress: Progress) -> bool:
        """True when nothing is left to write, or nothing can be."""
        return bool(progress.reason) or progress.done == len(self.request.blocks)

    def result(self) -> WriteResult:
        """The answer for a job that came to its end."""
        p = self.progress
        outcome = Outcome.FAILED if p.reason else Outcome.WRITTEN
        return WriteResult(outcome, p.n_tokens, p.written, p.shared, p.reason)


def put_next(
    update: Update, job: Job, progress: Progress, is_pinned: Callable[[bytes], bool], distrusted: set[bytes]
) -> int:
    """Write the next block of `job` and advance `progress`; return the bytes written.

    A block that is there is only touched. A leaf that a longer record covers is not written; a leaf that the
    new record covers goes, unless a save or a reader holds it.
    """
    given = job.request.blocks[progress.done]
    block, parent, _ = job.links[given.index]
    if block in distrusted:
        update.hollow_block(block)
        distrusted.discard(block)
    record = update.block(block)
    written = 0
    progress.last = block
    if record is not None:
        missing = [segment for segment in given.segments if segment.group not in record.groups]
        if missing:
            update.fill_block(block, record, missing)
            written = sum(segment.data.size for segment in missing)
        update.touch(block, update.now_ms, 0)
    elif given.index and update.block(parent) is None:
        progress.reason = f"block {given.index - 1} is not stored"
        return 0
    else:
        progress.last, written = _put_new(update, job, given, is_pinned)
    progress.done += 1
    progress.n_tokens = given.index * chain.BLOCK + given.n_rows
    progress.written += written
    progress.shared += given.n_bytes - written
    return written


def _put_new(
    update: Update, job: Job, given: BlockData, is_pinned: Callable[[bytes], bool]
) -> tuple[bytes, int]:
    """The record that has the rows now, and the bytes written."""
    block, parent, elements = job.links[given.index]
    wanted = {segment.group for segment in given.segments}

    def usable(candidate: bytes) -> bool:
        found = update.block(candidate)
        return found is not None and wanted <= found.groups

    near = update.nearest(parent, elements, usable)
    neighbour = update.block(near[0]) if near else None
    if near and neighbour and near[1] == given.n_rows:
        update.touch(near[0], update.now_ms, 0)
        return near[0], 0
    bare = BlockRecord(job.fingerprint[:8], parent, given.index, elements, (), update.now_ms)
    update.add_block(block, bare, given.segments, parent_is_root=given.index == 0)
    if near and neighbour and neighbour.is_leaf and near[1] == neighbour.n_rows:
        usage = update.usage(near[0])
        if usage.evictable and not is_pinned(near[0]):
            update.remove_block(near[0], neighbour)
    return block, given.n_bytes


def evict(update: Update, down_to: int, is_pinned: Callable[[bytes], bool], at_most: int) -> tuple[int, int]:
    """Remove the least valuable blocks until `down_to` live bytes remain; return how many and their bytes.

    A block goes after everything below it, so what survives always has its whole prefix. Stops after
    `at_most` blocks, to keep the transaction short, or when all that is left is held.
    """
    n_blocks = n_bytes = 0
    while update.ledger.live_bytes > down_to and n_blocks < at_most:
        victim = next((block for block in update.eviction_order() if not is_pinned(block)), None)
        if victim is None:
            break
        record = update.block(victim)
        if record is None:
            raise Damaged("the order of eviction names a block that is gone")
        n_bytes += update.remove_block(victim, record)
        n_blocks += 1
    return n_blocks, n_bytes
