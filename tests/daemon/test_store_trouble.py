"""The disk under the store fails in a running daemon: answers stay as they were, and the store comes back."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.process import EmberdProcess
from tests.disks import FailingDisk, memory_disk
from tests.runtime.evaluation import DATA

LLAMA = DATA / "archs" / "llama.gguf"
N_PROMPT = 700


def ask(daemon: EmberdProcess, seed: int, **fields: Any) -> dict[str, Any]:
    prompt = np.random.default_rng(seed).integers(0, 250, N_PROMPT).tolist()
    body = {"prompt": prompt, "n_predict": 6, "temperature": 0, "return_tokens": True, **fields}
    answer = daemon.client.post("/completion", json=body).raise_for_status().json()
    assert len(answer["tokens"]) == 6
    return answer


def health(daemon: EmberdProcess) -> dict[str, Any]:
    body = daemon.client.get("/health").raise_for_status().json()
    assert body["status"] == "ok"
    return body


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


@contextmanager
def daemon_on(state: Path) -> Iterator[EmberdProcess]:
    flags = ["--store-path", str(state), "--store-budget", "40M", "-c", "4096"]
    with EmberdProcess(LLAMA, *flags, module="tests.daemon.impatient") as daemon:
        eventually(lambda: health(daemon)["store"] == "ok")
        yield daemon


def restart_serves_from_store(state: Path, seed: int, expected: list[int]) -> None:
    """A new daemon finds what the old one wrote after its trouble."""
    with daemon_on(state) as daemon:
        answer = ask(daemon, seed)
    assert answer["tokens"] == expected
    assert answer["timings"]["cache_n"] == N_PROMPT - 1


def test_a_store_deleted_under_the_daemon_costs_no_request_and_is_made_anew(tmp_path: Path) -> None:
    with daemon_on(tmp_path) as daemon:
        first = ask(daemon, 1)
        # A slow machine would let it make the folder anew in between.
        daemon.process.send_signal(signal.SIGSTOP)
        shutil.rmtree(tmp_path / "store")
        (tmp_path / "store").write_text("in the way")
        daemon.process.send_signal(signal.SIGCONT)
        eventually(lambda: health(daemon)["store"] == "degraded")
        assert health(daemon)["store_reason"]
        assert ask(daemon, 1, cache_prompt=False)["tokens"] == first["tokens"]
        second = ask(daemon, 2)
        assert daemon.client.get("/store").raise_for_status().json()["status"] == "degraded"
        save = daemon.client.post("/slots/0", params={"action": "save"}, json={"filename": "x"})
        assert save.status_code == 501 and "store" in save.json()["error"]["message"]
        (tmp_path / "store").unlink()
        eventually(lambda: health(daemon)["store"] == "ok")
        assert "store_reason" not in health(daemon)
        third = ask(daemon, 3)
        assert ask(daemon, 2)["tokens"] == second["tokens"]
        assert daemon.terminate() == 0
    restart_serves_from_store(tmp_path, 3, third["tokens"])


def test_a_second_daemon_is_told_who_has_the_store_and_what_to_do(tmp_path: Path) -> None:
    with daemon_on(tmp_path) as daemon:
        argv = [
            sys.executable,
            "-m",
            "daemon.cli",
            "-m",
            str(LLAMA),
            "--port",
            "0",
            "--store-path",
            str(tmp_path),
        ]
        second = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert second.returncode == 75
        told = second.stderr.splitlines()[-1]
        assert f"in use by process {daemon.process.pid}, running since 2" in told and "--store off" in told
        assert ask(daemon, 1)["timings"]["cache_n"] == 0
        assert health(daemon)["store"] == "ok"


def test_a_full_disk_costs_no_request_and_is_recovered_from(tmp_path: Path) -> None:
    with memory_disk(tmp_path / "disk") as disk, daemon_on(disk) as daemon:
        first = ask(daemon, 1)
        with (disk / "ballast").open("wb") as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        n = 2
        while (state := health(daemon))["store"] == "ok":
            ask(daemon, n)
            n += 1
            assert n < 40, "the disk is not full"
        assert state["store_reason"]
        assert ask(daemon, 1, cache_prompt=False)["tokens"] == first["tokens"]
        (disk / "ballast").unlink()
        eventually(lambda: health(daemon)["store"] == "ok")
        last = ask(daemon, 100)
        assert daemon.terminate() == 0
        restart_serves_from_store(disk, 100, last["tokens"])


@pytest.mark.slow
def test_a_disk_that_goes_read_only_costs_no_request_and_can_be_mounted_anew(tmp_path: Path) -> None:
    """The store keeps reading at first, then lets go of its files, or nobody could repair the disk."""
    disk = FailingDisk(tmp_path / "disk")
    try:
        with daemon_on(disk.folder) as daemon:
            first = ask(daemon, 1)
            eventually(lambda: daemon.client.get("/store").json()["n_blocks"] > 0)
            disk.fail()
            ask(daemon, 2)
            eventually(lambda: health(daemon)["store"] == "degraded")
            assert health(daemon)["store_reason"]
            assert ask(daemon, 1, cache_prompt=False)["tokens"] == first["tokens"]
            eventually(disk.unmount)
            second = ask(daemon, 2)
            disk.mount()
            eventually(lambda: health(daemon)["store"] == "ok")
            third = ask(daemon, 3)
            assert ask(daemon, 2)["tokens"] == second["tokens"]
            assert daemon.terminate() == 0
        restart_serves_from_store(disk.folder, 3, third["tokens"])
    finally:
        disk.close()
