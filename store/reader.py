"""Threads for restores: they must never queue behind the fsync of a commit."""

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger("store")


class Reader:
    """Runs calls one after the other. `post` may be called from any thread."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_open = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, call: Callable[[], None]) -> bool:
        """Have `call` run on the reader thread; False when the store is closing (it will not run)."""
        with self._lock:
            if self._is_open:
                self._calls.put(call)
            return self._is_open

    def stop(self, deadline: float) -> None:
        """Run what was posted, then end; wait for that up to `deadline` seconds."""
        with self._lock:
            self._is_open = False
            self._calls.put(None)
        self._thread.join(deadline)

    def poison(self) -> None:
        """In a forked child, where the thread does not exist and the lock may have been held."""
        self._lock = threading.Lock()
        self._is_open = False

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                log.exception("a call on the store's reader failed")
