"""What HTTP itself costs: a request without work, beside llama-server's, and a token that is streamed."""

import http.client
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import httpx

from tools import bench_daemon
from tools.bench_daemon import DaemonProcess, Figure, random_prompt
from tools.bench_slots import LlamaServer

N_REQUESTS = 200
ROUNDS = 5


def http_rows(model: Path, folder: Path, threads: int, peer: Path | None) -> Iterator[Figure]:
    """Requests go over one connection, by a client that costs little itself."""
    with DaemonProcess(model, folder, threads) as daemon:
        own = _health_ms(daemon.client.base_url)
        details = ""
        if peer is not None:
            (folder / "peer").mkdir(parents=True, exist_ok=True)
            with LlamaServer(peer, model, folder / "peer", threads) as other:
                details = f"llama-server {_health_ms(other.client.base_url):.2f} ms"
        yield "median of GET /health, nothing else to do", own, "ms", 1, False, details
        used = []
        for seed in range(ROUNDS):
            before = _loop_seconds(daemon.pid)
            daemon.step_ms(random_prompt(seed, 32), store=False)
            used.append((_loop_seconds(daemon.pid) - before) / bench_daemon.N_DECODE * 1e6)
        details = f"{min(used):.0f} to {max(used):.0f}, of the event loop's thread"
        yield "processor time per streamed token", median(used), "µs", 250, False, details


def _health_ms(url: httpx.URL) -> float:
    connection = http.client.HTTPConnection(url.host, url.port)
    seconds = []
    for _ in range(N_REQUESTS):
        begin = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        seconds.append(time.perf_counter() - begin)
    connection.close()
    return median(seconds) * 1e3


def _loop_seconds(pid: int) -> float:
    """Processor time of a process's first thread, in which the daemon has its event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
