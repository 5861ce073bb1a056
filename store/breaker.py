"""When writing fails, leave the disk alone for 30 s, doubled up to 10 min, until a commit succeeds."""

from dataclasses import dataclass

FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 600.0


@dataclass(slots=True)
class Breaker:
    """Closed (`reason` empty) while all is well. Times are of a monotonic clock, in seconds."""

    first_pause_s: float = FIRST_PAUSE_S
    failures: int = 0
    retry_at: float = 0.0
    reason: str = ""

    @property
    def is_open(self) -> bool:
        return bool(self.reason)

    def fail(self, now: float, reason: str) -> None:
        """Open, or stay open for twice as long as before."""
        pause = min(self.first_pause_s * 2**self.failures, LONGEST_PAUSE_S)
        self.failures = min(self.failures + 1, 16)
        self.retry_at = now + pause
        self.reason = reason

    def succeed(self) -> None:
        self.failures = 0
        self.reason = ""
