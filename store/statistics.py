"""What the store knows of itself, for /metrics, `GET /store` and `emberd store stats`."""

import threading
from dataclasses import dataclass, replace
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
    lookups_partial: int = 0
    """Look-ups that found a part of the prompt."""
    lookups_miss: int = 0
    """Look-ups that found nothing."""
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
    evicted: int = 0
    """Blocks and points removed to keep the budget."""
    evicted_bytes: int = 0
    """Their bytes."""
    quarantined: int = 0
    """Blocks and points that failed verification and were taken out."""
    rebuilt: int = 0
    """Times the data file was repaired or set aside since the store was opened."""

    @property
    def dropped(self) -> int:
        """All offers given up."""
        return self.dropped_queue + self.dropped_memory + self.dropped_trouble


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

    def snapshot(self) -> StoreStatistics:
        """The counters with all gauges at their defaults."""
        with self._lock:
            return self._totals
