"""One HTTP exchange: what it holds, and what is undone and reported when it ends, however it ends."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quart import request

from daemon.completion import Completion
from daemon.logs import logger

SCOPE_KEY = "emberd.exchange"


@dataclass(slots=True)
class Exchange:
    """Lives in the ASGI scope, so that it ends with the connection's interest in the answer."""

    method: str
    path: str
    status: int = 0
    completions: list[Completion] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    _closers: list[Callable[[], None]] = field(default_factory=list)

    def on_end(self, close: Callable[[], None]) -> None:
        """Call `close` when the exchange ends: answered, failed or abandoned by the client."""
        self._closers.append(close)

    def end(self) -> None:
        for close in self._closers:
            close()
        self._report()

    def _report(self) -> None:
        facts: dict[str, Any] = {
            "method": self.method,
            "path": self.path,
            "status": self.status or "aborted",
            "ms": round((time.perf_counter() - self.started) * 1e3, 1),
        }
        if not self.completions:
            logger().debug("request", **facts)
        for completion in self.completions:
            logger().info("request", **facts, **_completion_facts(completion))


def _completion_facts(completion: Completion) -> dict[str, Any]:
    timings = completion.timings
    reason = str(completion.finished.reason) if completion.finished else "unfinished"
    return {
        "id": completion.request.request_id,
        "slot": completion.started.id_slot if completion.started else -1,
        "prompt": completion.n_prompt,
        "cached": completion.n_cached,
        "cache": str(timings.cache_source),
        "why": timings.cache_reason,
        "prompt_ms": round(timings.prompt_ms, 1),
        "predicted": completion.n_decoded,
        "predicted_ms": round(timings.predicted_ms, 1),
        "stop": reason,
    }


def current_exchange() -> Exchange:
    """The exchange of the request that is handled by this task."""
    scope: Any = request.scope
    exchange: Exchange = scope[SCOPE_KEY]
    return exchange
