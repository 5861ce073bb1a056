"""What is offered for writing, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from store import chain
from store.chain import Tokens
from store.manifests import ManifestInfo
from store.names import checked_name
from store.update import Segment

MAX_BLOCK_BYTES = 1 << 30
MAX_SEGMENTS = 64
MAX_LABEL = 512
MAX_WORDS_BYTES = 1 << 16


class Outcome(StrEnum):
    WRITTEN = "written"
    DROPPED = "dropped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What became of an offer: its prefix is stored up to `n_tokens`.

    `bytes_written` are new, `bytes_shared` were there already. `reason` is empty when all went well. `saved`
    is the save that the offer was to become; None with a reason where all of it was written, and yet is not
    there any more.
    """

    outcome: Outcome
    n_tokens: int = 0
    bytes_written: int = 0
    bytes_shared: int = 0
    reason: str = ""
    saved: ManifestInfo | None = None


@dataclass(frozen=True, slots=True)
class SaveAs:
    """What a save is to be called; `note` and `model` are the caller's words."""

    name: str
    note: str = ""
    model: str = ""

    def checked(self) -> "SaveAs":
        """With the name in its one form. Raises `InvalidName`, and ValueError beyond 64 KiB of words."""
        if len(self.note.encode()) + len(self.model.encode()) > MAX_WORDS_BYTES:
            raise ValueError("a note or model name is too long")
        return replace(self, name=checked_name(self.name))


@dataclass(frozen=True, slots=True)
class BlockData:
    """Lent bytes of one block: `index` counts blocks of 256, the first `n_rows` positions are valid.

    Without segments it is of a model that keeps nothing per position.
    """

    index: int
    n_rows: int
    segments: tuple[Segment, ...]

    @property
    def n_bytes(self) -> int:
        return sum(segment.data.size for segment in self.segments)


@dataclass(frozen=True, slots=True)
class PointData:
    """Lent bytes of a point at exactly `n_tokens`: its parts by name."""

    n_tokens: int
    parts: tuple[Segment, ...]

    @property
    def n_bytes(self) -> int:
        return sum(part.data.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A prefix offered for writing: blocks of ``tokens`` (integers [n]) below `root`, in ascending order.

    So are `points`; where there are many, only some are kept. Blocks that are not given must be stored
    already. The views are read by the writer thread until `on_done` is called, exactly once, on whatever
    thread settles the matter. `why` "save" is never dropped for lack of room in the queue. With `save_as` the
    commit that completes the prefix also gives it its name, and has survived a power loss when it is settled.
    """

    root: bytes
    tokens: Tokens
    blocks: tuple[BlockData, ...]
    why: str
    on_done: Callable[[WriteResult], None]
    points: tuple[PointData, ...] = ()
    save_as: SaveAs | None = None

    @property
    def n_bytes(self) -> int:
        return sum(b.n_bytes for b in self.blocks) + sum(p.n_bytes for p in self.points)

    def check(self) -> None:
        """Raises ValueError for what the caller got wrong."""
        end = len(self.tokens)
        if not self.blocks and not self.points:
            raise ValueError("an offer of nothing")
        previous = -1
        for block in self.blocks:
            full = min(chain.BLOCK, end - block.index * chain.BLOCK)
            if block.index <= previous or block.n_rows != full:
                raise ValueError(f"block {block.index} with {block.n_rows} rows does not fit {end} tokens")
            previous = block.index
            _check_segments(f"block {block.index}", block.segments)
        previous = 0
        for point in self.points:
            if not previous < point.n_tokens <= end or not point.parts:
                raise ValueError(f"a point at {point.n_tokens} of {end} tokens")
            previous = point.n_tokens
            _check_segments(f"the point at {point.n_tokens}", point.parts)


def _check_segments(owner: str, segments: tuple[Segment, ...]) -> None:
    n_bytes = sum(segment.data.size for segment in segments)
    if n_bytes > MAX_BLOCK_BYTES or len(segments) > MAX_SEGMENTS:
        raise ValueError(f"{owner} has {n_bytes} bytes in {len(segments)} segments")
    for segment in segments:
        data = segment.data
        if data.ndim != 1 or data.dtype != "u1" or not data.flags.c_contiguous or not data.size:
            raise ValueError(f"segment {segment.group} is not contiguous bytes")
        if segment.unit_bytes <= 0:
            raise ValueError(f"segment {segment.group} has units of {segment.unit_bytes} bytes")
        if len(segment.group) + len(segment.layout_id) > MAX_LABEL:
            raise ValueError(f"segment {segment.group[:20]} has too long a name or layout id")
    if len({segment.group for segment in segments}) != len(segments):
        raise ValueError(f"{owner} has a segment twice")
