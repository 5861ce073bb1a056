"""The bounded pool for work that would hold up the event loop: tokenising, templates, hashing."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")

_LIMIT = 2


class Workers:
    """Runs functions in at most two threads at a time; further callers wait in order."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_LIMIT)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in a thread. A cancelled caller goes on at once and the result is dropped."""
        return await trio.to_thread.run_sync(
            lambda: function(*args, **kwargs), abandon_on_cancel=True, limiter=self._limiter
        )
