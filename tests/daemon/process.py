"""emberd as users run it: a process with a real model."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

import httpx

READY = "emberd is ready: "


class EmberdProcess:
    """Use as a context manager; `url` and `client` are there once the model is loaded."""

    def __init__(
        self, model: Path, *flags: str, start_seconds: float = 240, module: str = "daemon.cli"
    ) -> None:
        self._argv = [sys.executable, "-m", module, "-m", str(model), "--port", "0", *flags]
        self._start_seconds = start_seconds
        self.log: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        timer = threading.Timer(self._start_seconds, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        timer.cancel()
        assert line.startswith(READY), "".join(self.log)
        self.url = line.removeprefix(READY).strip()
        self.client = httpx.Client(base_url=self.url, timeout=120)
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def terminate(self) -> int:
        """Ask it to stop; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)
