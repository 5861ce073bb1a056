"""A crowd that asks, saves, erases, forgets and goes away at any moment changes nobody's answer."""

import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.harness import until
from tests.daemon.process import EmberdProcess
from tests.runtime.evaluation import arch

SECONDS = 15
VISITORS = 8
BODY: dict[str, Any] = {"prompt": "the quick brown fox", "seed": 3, "n_predict": 40, "temperature": 1}


def request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    some_ids = [3 + rng.randrange(200) for _ in range(rng.randrange(1, 480))]
    action = rng.choice(["save", "restore", "erase"])
    message = {"role": "user", "content": "a" * rng.randrange(200)}
    return rng.choice(
        [
            ("/completion", {"prompt": some_ids, "n_predict": rng.randrange(60)}),
            ("/completion", {"prompt": "the quick", "n_predict": 5, "stop": ["a", "e"], "n_probs": 5}),
            ("/v1/chat/completions", {"messages": [message], "max_tokens": 9, "n": rng.randrange(1, 3)}),
            (f"/slots/{rng.randrange(3)}?action={action}", {"filename": f"save-{rng.randrange(3)}"}),
            ("/store/forget", {"prompt": "the quick brown"}),
        ]
    )


def visit(port: int, number: int, end: float) -> list[bytes]:
    """Ask until `end`, every other time without waiting for the answer. The answers that tell of a fault."""
    rng = random.Random(number)
    faults = []
    while time.monotonic() < end:
        path, body = request(rng)
        data = json.dumps(body | {"stream": rng.random() < 0.5}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            sock.sendall(head.encode() + data)
            if rng.random() < 0.5:
                time.sleep(rng.random() / 10)
                continue
            answer = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))
        if not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")):
            faults.append(answer[-500:])
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "qwen35"])
def test_a_crowd_changes_no_answer_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    flags = ("-np", "3", "-c", "1536", "--store-path", str(tmp_path))
    with EmberdProcess(arch(name), *flags) as emberd, ThreadPoolExecutor(VISITORS) as pool:

        def answer(**fields: Any) -> str:
            response = emberd.client.post("/completion", json=BODY | fields)
            assert response.status_code == 200, response.text
            return str(response.json()["content"])

        alone = answer(cache_prompt=False)
        end = time.monotonic() + SECONDS
        port = int(emberd.url.rsplit(":", 1)[1])
        crowd = [pool.submit(visit, port, number, end) for number in range(VISITORS)]
        while time.monotonic() < end:
            assert answer() == answer(cache_prompt=False) == alone
        assert [fault for visitor in crowd for fault in visitor.result()] == []
        until(lambda: emberd.client.get("/health").json()["slots_processing"] == 0)
        assert emberd.client.get("/slots").status_code == 200
        assert len(list(Path(f"/proc/{emberd.process.pid}/fd").iterdir())) < 60
        assert answer() == alone
        assert emberd.terminate() == 0
