"""What `emberd bench` measures of a whole daemon: one in a process of its own, asked over HTTP.

The rows of ``--store`` that need a model, and those of ``--daemon``: how prompt it is while it computes.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Self

import httpx
import numpy as np

READY = "emberd is ready: "
ROUNDS = 5
N_PROMPT, N_LONG, N_DECODE, N_PREFILL = 1024, 2048, 96, 512
_TIMEOUT_S = 600.0

Figure = tuple[str, float, str, float, bool, str]
"""The fields of a `tools.bench_store.Row`."""


class SlotClient:
    """Requests to a server and its slot 0, in llama-server's API."""

    client: httpx.Client

    def ask(self, prompt: np.ndarray[Any, Any], **fields: Any) -> dict[str, Any]:
        body = {"prompt": prompt.tolist(), "n_predict": 1, "temperature": 0, **fields}
        answer: dict[str, Any] = self.client.post("/completion", json=body).raise_for_status().json()
        return answer

    def act(self, action: str, name: str) -> dict[str, Any]:
        """Save, restore or erase slot 0."""
        answer: dict[str, Any] = self._act(action, name).raise_for_status().json()
        return answer

    def _act(self, action: str, name: str) -> httpx.Response:
        return self.client.post("/slots/0", params={"action": action}, json={"filename": name})


class DaemonProcess(SlotClient):
    """A daemon with a store in `folder`, from the start of the `with` block to its end."""

    def __init__(self, model: Path, folder: Path, threads: int) -> None:
        self._command = [
            sys.executable, "-P", "-m", "daemon.cli", "-m", str(model), "--port", "0", "-t", str(threads),
            "-np", "2", "-c", "16384", "--store-path", str(folder), "--log-disable",
        ]  # fmt: skip

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(READY):
            raise OSError("the daemon to be measured did not start")
        url = line.removeprefix(READY).strip()
        self.client = httpx.Client(base_url=url, timeout=_TIMEOUT_S)
        while self._saving_is_early():
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _saving_is_early(self) -> bool:
        """True until the model is identified, which happens beside the first requests."""
        self.ask(np.arange(10, 30), n_predict=1, id_slot=0)
        return self._act("save", "early").status_code == 503

    def step_ms(self, prompt: np.ndarray[Any, Any], store: bool) -> float:
        """Median milliseconds between the tokens that follow a prompt."""
        body = {
            "prompt": prompt.tolist(), "n_predict": N_DECODE, "temperature": 0, "ignore_eos": True,
            "stream": True, "store": store, "id_slot": 1,
        }  # fmt: skip
        arrivals: list[float] = []
        with self.client.stream("POST", "/completion", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: ") and json.loads(line[6:]).get("tokens"):
                    arrivals.append(time.perf_counter())
        return float(np.median(np.diff(arrivals))) * 1e3


class Ticker:
    """How long ``GET /health`` takes, every 5 ms, in milliseconds: what the event loop is late."""

    def __init__(self, url: httpx.URL) -> None:
        self._url = url
        self._stop = threading.Event()
        self.late: list[float] = []
        self._thread = threading.Thread(target=self._tick)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _tick(self) -> None:
        with httpx.Client(base_url=self._url) as client:
            while not self.late or not self._stop.wait(0.005):
                begin = time.perf_counter()
                client.get("/health")
                self.late.append((time.perf_counter() - begin) * 1e3)

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.late, share))


def daemon_rows(model: Path, folder: Path, threads: int) -> Iterator[Figure]:
    yield from _restore(model, folder / "restore", threads)
    yield from _persisting(model, folder / "persist", threads)


def latency_rows(model: Path, folder: Path, threads: int) -> Iterator[Figure]:
    """How long ``GET /health`` takes while the engine has the cores: a bound of the loop's lateness."""
    with DaemonProcess(model, folder, threads) as daemon:

        def prefill(seed: int) -> None:
            for i in range(ROUNDS):
                daemon.ask(random_prompt(seed + i, N_PREFILL), cache_prompt=False)

        def decode(seed: int) -> None:
            daemon.step_ms(random_prompt(seed, 32), store=False)

        for name, work in (
            (f"prompts of {N_PREFILL} tokens are read", prefill),
            (f"{N_DECODE} tokens are generated", decode),
        ):
            work(100)
            with Ticker(daemon.client.base_url) as ticker:
                work(200)
            p50, most = ticker.percentile(50), ticker.percentile(100)
            details = f"median {p50:.1f}, most {most:.1f} of {len(ticker.late)}"
            yield f"p99 of GET /health while {name}", ticker.percentile(99), "ms", 20, False, details


def random_prompt(seed: int, n_tokens: int) -> np.ndarray[Any, Any]:
    """Ids that every vocabulary has: speed does not depend on what they are."""
    return np.random.default_rng(seed).integers(20, 250, n_tokens)


def _restore(model: Path, folder: Path, threads: int) -> Iterator[Figure]:
    prompts = [random_prompt(seed, N_PROMPT) for seed in range(ROUNDS)]
    computed, warm, first_token, saved = [], [], [], []
    with DaemonProcess(model, folder, threads) as daemon:
        daemon.ask(random_prompt(99, N_PROMPT), id_slot=0)
        for i, prompt in enumerate(prompts):
            computed.append(daemon.ask(prompt, id_slot=0)["timings"]["prompt_ms"])
            saved.append(daemon.act("save", f"bench-{i}")["timings"]["save_ms"])
            daemon.act("erase", "")
            warm.append(daemon.act("restore", f"bench-{i}")["timings"]["restore_ms"])
            daemon.act("erase", "")
            again = daemon.ask(prompt, id_slot=0)["timings"]
            if again["cache_n"] != N_PROMPT - 1:
                raise OSError(f"only {again['cache_n']} of {N_PROMPT} tokens came back from the store")
            first_token.append(again["prompt_ms"])
    compute = median(computed)

    def figure(name: str, seconds: list[float], bar: float) -> Figure:
        details = f"{median(seconds):.1f} against {compute:.0f} ms; a save {median(saved):.1f} ms"
        return name, compute / median(seconds), "x", bar, True, details

    yield figure(f"restore of {N_PROMPT} tokens, warm / computing them", warm, 20)
    yield figure(f"first token after a restore of {N_PROMPT} / after computing", first_token, 5)
    cold = []
    for i in range(ROUNDS):
        drop_cache(folder / "store" / "data.mdb")
        with DaemonProcess(model, folder, threads) as daemon:
            cold.append(daemon.act("restore", f"bench-{i}")["timings"]["restore_ms"])
    yield figure(f"restore of {N_PROMPT} tokens, cold / computing them", cold, 5)


def _persisting(model: Path, folder: Path, threads: int) -> Iterator[Figure]:
    """Decoding behind a long prompt, while it is written and when it is not to be stored."""
    idle: list[float] = []
    busy: list[float] = []
    with DaemonProcess(model, folder, threads) as daemon:
        calm, loaded = Ticker(daemon.client.base_url), Ticker(daemon.client.base_url)
        daemon.step_ms(random_prompt(99, N_LONG), store=False)
        for i in range(ROUNDS):
            for store in (True, False) if i % 2 else (False, True):
                step = daemon.step_ms(random_prompt(100 + 2 * i + store, N_LONG), store=store)
                (busy if store else idle).append(step)
        with calm:
            daemon.step_ms(random_prompt(200, N_LONG), store=False)
        with loaded:
            daemon.step_ms(random_prompt(201, N_LONG), store=True)
    details = f"{median(busy):.2f} against {median(idle):.2f} ms"
    yield "decode step while persisting / not", median(busy) / median(idle), "x", 1.1, False, details
    late = loaded.percentile(99) - calm.percentile(99)
    details = f"p99 of GET /health: {loaded.percentile(99):.1f} against {calm.percentile(99):.1f} ms"
    yield "event loop later while persisting", max(0.0, late), "ms", 10, False, details


def drop_cache(path: Path) -> None:
    """Have the next read of a file that nobody maps come from the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
