"""How far loading is: a bar on a terminal, log lines elsewhere, and the service manager's status line."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from daemon.logs import logger
from daemon.systemd import Notifier

_TITLES = {"load": "loading model", "compile": "compiling kernels"}
_STEP = 0.25
_LINE_SECONDS = 2.0
"""Between two lines of the log: a start that takes less has nothing to tell."""
_PATIENCE_SECONDS = 120
"""What a service manager is asked to wait for the next sign of life: a download has no fixed duration."""
_SIGN_SECONDS = 10.0


class LoadProgress:
    """Called from the loading thread. Leaving the block removes the bar."""

    def __init__(self, notifier: Notifier, *, quiet: bool) -> None:
        self._notifier = notifier
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not quiet:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
            )
            console = Console(file=sys.stderr)
            self._bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}
        self._shown: dict[str, float] = {}
        self._last_sign = 0.0
        self._last_line = time.monotonic()

    def __call__(self, stage: str, share: float) -> None:
        title = _TITLES.get(stage, stage)
        if (now := time.monotonic()) - self._last_sign >= _SIGN_SECONDS:
            self._last_sign = now
            self._notifier.send(EXTEND_TIMEOUT_USEC=str(_PATIENCE_SECONDS * 1_000_000))
        if self._bar is not None:
            if stage not in self._tasks:
                self._tasks[stage] = self._bar.add_task(title, total=1.0)
            self._bar.update(self._tasks[stage], completed=share)
        if share - self._shown.get(stage, -1.0) < _STEP and share < 1.0:
            return
        if self._shown.get(stage) == 1.0:
            return
        self._shown[stage] = share
        self._notifier.send(STATUS=f"{title}: {share:.0%}")
        if self._bar is None and now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            logger().info(title, done=f"{share:.0%}")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
