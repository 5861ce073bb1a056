"""What saving and restoring a slot takes, beside llama-server with the same tokens, in one run."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Self

import httpx

from tools.bench_daemon import DaemonProcess, Figure, SlotClient, random_prompt
from tools.llama_bench import ToolFailed

N_PROMPT = 1500
ROUNDS = 10
_READY_S = 120.0
_TIMEOUT_S = 600.0
_SETTLE_S = 1.0


class LlamaServer(SlotClient):
    """llama.cpp's server, whose libraries may lie beside it. Errors: ToolFailed when it does not start."""

    def __init__(self, program: Path, model: Path, folder: Path, threads: int) -> None:
        self._program = program
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        self._command = [
            str(program), "-m", str(model), "--host", "127.0.0.1", "--port", self._port, "-t", str(threads),
            "-np", "2", "-c", "16384", "--slot-save-path", str(folder),
        ]  # fmt: skip

    def __enter__(self) -> Self:
        beside = os.pathsep.join(filter(None, (str(self._program.parent), os.environ.get("LD_LIBRARY_PATH"))))
        quiet = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                self._command, stdout=quiet, stderr=quiet, env={**os.environ, "LD_LIBRARY_PATH": beside}
            )
        except OSError as error:
            raise ToolFailed(f"{self._program}: {error.strerror}") from None
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=_TIMEOUT_S)
        deadline = time.monotonic() + _READY_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise ToolFailed(f"{self._program}: did not start to serve the model")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait()

    def _is_ready(self) -> bool:
        try:
            return self.client.get("/health").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


def slot_rows(model: Path, folder: Path, threads: int, peer: Path) -> Iterator[Figure]:
    """Both servers in turn read a prompt, save it a second later and again, erase the slot and restore it.

    Then they restore what they saved the round before: where one conversation takes the slot of another,
    emberd may still have both in memory. After that they read others and save them at once, apart because
    writing goes on for a while. What the other server saved is in the page cache when it answers, and where
    that makes a difference it is put on the disk too, as emberd's is: what that takes at once depends on the
    disk, and on how soon after the prompt is read the answer is there.
    """
    (folder / "peer").mkdir(parents=True)
    with (
        DaemonProcess(model, folder / "ours", threads) as ours,
        LlamaServer(peer, model, folder / "peer", threads) as theirs,
    ):
        seconds = [_Seconds(ours), _Seconds(theirs, folder / "peer")]
        for step in (_Seconds.restored, _Seconds.saved_at_once):
            for i in range(ROUNDS + 1):
                for each in seconds if i % 2 else reversed(seconds):
                    step(each, i)
    mine, other = seconds
    for action, a, b in (
        ("restore", mine.restore, other.restore),
        ("restore of the conversation before", mine.swap, other.swap),
        ("save, a second after the answer", mine.save, other.save),
        ("save of what was saved already", mine.save_again, other.save_again),
        ("save at once, on the disk", mine.save_at_once, other.save_and_sync),
    ):
        # The first round warms up.
        here, there = median(a[1:]) * 1e3, median(b[1:]) * 1e3
        details = f"{there:.1f} against {here:.1f} ms; {N_PROMPT} tokens"
        if b is other.save_and_sync:
            details += f"; theirs before fsync {median(other.save_at_once[1:]) * 1e3:.1f} ms"
        yield f"llama-server's /slots {action} / ours", there / here, "x", 1, True, details


class _Seconds:
    """What a server took in each round. `folder` is where it leaves its saves in the page cache."""

    def __init__(self, server: SlotClient, folder: Path | None = None) -> None:
        self._server = server
        self._folder = folder
        self.save_at_once: list[float] = []
        self.save_and_sync: list[float] = []
        self.save: list[float] = []
        self.save_again: list[float] = []
        self.restore: list[float] = []
        self.swap: list[float] = []

    def saved_at_once(self, i: int) -> None:
        server, name = self._server, f"now-{i}"
        server.ask(random_prompt(1000 + i, N_PROMPT), id_slot=0)
        self.save_at_once.append(_timed(lambda: server.act("save", name)))
        if self._folder is not None:
            file = self._folder / name
            self.save_and_sync.append(self.save_at_once[-1] + _timed(lambda: _sync(file)))

    def restored(self, i: int) -> None:
        server, name = self._server, f"slots-{i}"
        server.ask(random_prompt(i, N_PROMPT), id_slot=0)
        time.sleep(_SETTLE_S)
        self.save.append(_timed(lambda: server.act("save", name)))
        self.save_again.append(_timed(lambda: server.act("save", f"again-{i}")))
        server.act("erase", name)
        self.restore.append(_timed(lambda: server.act("restore", name)))
        before = f"slots-{max(0, i - 1)}"
        self.swap.append(_timed(lambda: server.act("restore", before)))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
