"""Blocks that must not be evicted for a moment: a look-up found them, a restore is on its way."""

import threading
import time
from collections.abc import Iterable

HOLD_S = 30.0


class Pins:
    """Ids with a time to live, so that a request which dies between look-up and restore leaks nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[bytes, float] = {}
        self._sweep_at = 0.0

    def hold(self, blocks: Iterable[bytes]) -> None:
        """Protect `blocks` for `HOLD_S` seconds from now."""
        now = time.monotonic()
        with self._lock:
            for block in blocks:
                self._until[block] = now + HOLD_S
            if now >= self._sweep_at:
                self._until = {block: until for block, until in self._until.items() if until > now}
                self._sweep_at = now + HOLD_S

    def release(self, block: bytes) -> None:
        """Protect `block` no longer: it was copied out."""
        with self._lock:
            self._until.pop(block, None)

    def __contains__(self, block: bytes) -> bool:
        with self._lock:
            return self._until.get(block, 0.0) > time.monotonic()
