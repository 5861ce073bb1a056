"""What the store knows of itself, for /metrics, `GET /store` and `emberd store stats`."""

import threading
from dataclasses import asdict, dataclass, replace
from typing import Literal

State = Literal["ok", "degraded", "off"]


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """A snapshot. Counters run since the store was opened, gauges are of now; sizes are bytes."""

    state: State = "ok"
    """ok, degraded (reads only), or off."""
    reason: str = ""
    """Why the state is not ok, empty otherwise."""
    budget_bytes: int = 0
    """Live bytes that may be kept."""
    live_bytes: int = 0
    """Bytes that blocks and points take, rounded up to pages."""
    pinned_bytes: int = 0
    """The part of `live_bytes` that saves hold."""
    file_bytes: int = 0
    """Size of the data file, which keeps freed pages for reuse."""
    n_blocks: int = 0
    """Stored blocks, partial ones included."""
    n_points: int = 0
    """Stored points: states and rings as of one position."""
    point_bytes: int = 0
    """The part of `live_bytes` that points take."""
    n_manifests: int = 0
    """Named saves."""
    queue_bytes: int = 0
    """Lent bytes that wait to be written."""
    oldest_reader_s: float = 0.0
    """Age of the oldest read transaction now open, in seconds."""
    lookups_hit: int = 0
    """Look-ups that found the whole prompt."""
    partial_differs: int = 0
    """Look-ups that found a part of the prompt: what is stored differs or ends within a block."""
    partial_absent: int = 0
    """Look-ups that found a part of the prompt: no block is stored behind it."""
    partial_damaged: int = 0
    """Look-ups that found a part of the prompt: what is stored behind it is damaged."""
    miss_absent: int = 0
    """Look-ups that found nothing: nothing is stored."""
    miss_damaged: int = 0
    """Look-ups that found nothing: what is stored is damaged."""
    miss_trouble: int = 0
    """Look-ups that found nothing: the file could not be read."""
    tokens_reused: int = 0
    """Positions copied out and verified."""
    points_reused: int = 0
    """Points copied out and verified."""
    bytes_read: int = 0
    """Bytes copied out and verified."""
    reads: int = 0
    """Blocks and points copied out and verified."""
    read_seconds: float = 0.0
    """Time spent in copying out."""
    bytes_written: int = 0
    """Bytes committed."""
    commits: int = 0
    """Committed transactions that carried blocks."""
    commit_seconds: float = 0.0
    """Time spent in them."""
    dropped_queue: int = 0
    """Offers given up because the queue was full."""
    dropped_memory: int = 0
    """Offers given up because the memory they were lent from was needed."""
    dropped_trouble: int = 0
    """Offers given up because nothing could be written."""
    failed: int = 0
    """Offers that could not be written."""
    evicted_blocks: int = 0
    """Blocks removed to keep the budget."""
    evicted_points: int = 0
    """Points removed to keep the budget."""
    evicted_bytes: int = 0
    """The bytes of both."""
    quarantined_checksum: int = 0
    """Blocks and points taken out because bytes did not match their checksum."""
    quarantined_record: int = 0
    """Blocks and points taken out because their record or one of their parts was missing or damaged."""
    rebuilt: int = 0
    """Times the data file was repaired or set aside since the store was opened."""

    @property
    def lookups_partial(self) -> int:
        """Look-ups that found a part of the prompt."""
        return self.partial_differs + self.partial_absent + self.partial_damaged

    @property
    def lookups_miss(self) -> int:
        """Look-ups that found nothing."""
        return self.miss_absent + self.miss_damaged + self.miss_trouble

    @property
    def evicted(self) -> int:
        """Blocks and points removed to keep the budget."""
        return self.evicted_blocks + self.evicted_points

    @property
    def quarantined(self) -> int:
        """Blocks and points that failed verification and were taken out."""
        return self.quarantined_checksum + self.quarantined_record

    @property
    def free_bytes(self) -> int:
        """What the data file has beyond `live_bytes`: pages to be used again, and where it grows."""
        return max(0, self.file_bytes - self.live_bytes)

    @property
    def dropped(self) -> int:
        """All offers given up."""
        return self.dropped_queue + self.dropped_memory + self.dropped_trouble


_SUMS = ("lookups_partial", "lookups_miss", "evicted", "quarantined", "free_bytes", "dropped")


def figures(statistics: StoreStatistics) -> dict[str, int | float | str]:
    """All fields and their sums by name."""
    return asdict(statistics) | {name: getattr(statistics, name) for name in _SUMS}


class Counters:
    """The counters of `StoreStatistics`, added to from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = StoreStatistics()

    def add(self, **amounts: float) -> None:
        """Add to counters by name."""
        with self._lock:
            sums = {name: getattr(self._totals, name) + amount for name, amount in amounts.items()}
            self._totals = replace(self._totals, **sums)

    def add_evicted(self, n_blocks: int, n_points: int, n_bytes: int) -> None:
        self.add(evicted_blocks=n_blocks, evicted_points=n_points, evicted_bytes=n_bytes)

    def snapshot(self) -> StoreStatistics:
        """The counters with all gauges at their defaults."""
        with self._lock:
            return self._totals
