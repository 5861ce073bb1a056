"""Same seed, same request: the same bytes on every route, whatever ran beside it, cached or not, and after
a restart. And what happens when the context is full.

Tiny models with random weights, one for each kind of memory, in processes of their own.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.process import EmberdProcess
from tests.runtime.evaluation import arch

SLOW = ("gemma3", "mamba2", "qwen35", "deepseek2", "deepseek4")
KINDS = ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
"""A model for each kind of memory: rows of all positions, of a window, states, both, latents, compressed."""

N_CTX = 512
SLOTS = 3

TEXT = "the quick brown fox jumps over the lazy dog " * 8
CHAT = [{"role": "user", "content": TEXT}]
DRAWN = {"seed": 7, "temperature": 1.5, "max_tokens": 12, "ignore_eos": True}
REQUESTS: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": TEXT, "n_probs": 3, "return_tokens": True, **DRAWN},
    "/v1/completions": {"prompt": TEXT, "logprobs": 3, **DRAWN},
    "/v1/chat/completions": {"messages": CHAT, "logprobs": True, "top_logprobs": 3, **DRAWN},
    "/v1/messages": {"messages": CHAT, **DRAWN},
    "/v1/responses": {"input": CHAT, **DRAWN},
}
FLEETING = {"id", "id_slot", "created", "created_at", "completed_at", "timings", "usage"}
"""Names, times, and what the cache had: all that may differ."""


def start(name: str, store: Path) -> EmberdProcess:
    return EmberdProcess(arch(name), "-np", f"{SLOTS}", "-c", f"{SLOTS * N_CTX}", "--store-path", f"{store}")


def lasting(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {key: lasting(value) for key, value in answer.items() if key not in FLEETING}
    return [lasting(item) for item in answer] if isinstance(answer, list) else answer


def ask(emberd: EmberdProcess, path: str, **fields: Any) -> Any:
    response = httpx.post(f"{emberd.url}{path}", json=REQUESTS[path] | fields, timeout=120)
    assert response.status_code == 200, response.text
    return lasting(response.json())


def ask_all(emberd: EmberdProcess, **fields: Any) -> dict[str, Any]:
    return {path: ask(emberd, path, **fields) for path in REQUESTS}


@contextmanager
def company(emberd: EmberdProcess) -> Iterator[None]:
    """Other prompts are read and answered beside, over and over."""
    done = threading.Event()

    def chatter(number: int) -> None:
        with httpx.Client(base_url=emberd.url, timeout=120) as client:
            for i in range(10_000):
                if done.is_set():
                    return
                prompt = [3 + (number + i * k) % 200 for k in range(50 + 40 * i % 300)]
                client.post("/completion", json={"prompt": prompt, "n_predict": 8}).raise_for_status()

    with ThreadPoolExecutor(SLOTS - 1) as pool:
        running = [pool.submit(chatter, number) for number in range(SLOTS - 1)]
        try:
            yield
        finally:
            done.set()
        for one in running:
            one.result()


@pytest.mark.parametrize("name", KINDS)
def test_every_route_repeats_its_bytes(name: str, tmp_path: Path) -> None:
    with start(name, tmp_path) as emberd:
        cold = ask_all(emberd, cache_prompt=False)
        assert ask_all(emberd) == cold
        with company(emberd):
            assert ask_all(emberd, cache_prompt=False) == cold
        with ThreadPoolExecutor(len(REQUESTS)) as pool:
            together = pool.map(lambda path: ask(emberd, path), REQUESTS)
            assert dict(zip(REQUESTS, together, strict=True)) == cold
        assert ask(emberd, "/completion", seed=8) != cold["/completion"]
        assert emberd.terminate() == 0
    with start(name, tmp_path) as emberd:
        restored = emberd.client.post("/completion", json=REQUESTS["/completion"]).json()
        assert restored["timings"]["cache_source"] == "store"
        assert lasting(restored) == cold["/completion"]
        assert ask_all(emberd) == cold


@pytest.mark.parametrize("name", KINDS)
def test_a_full_context_ends_the_answer_as_truncated(name: str, tmp_path: Path) -> None:
    endless = {"max_tokens": -1, "n_probs": 0}
    with start(name, tmp_path) as emberd:
        answer = ask(emberd, "/completion", **endless)
        assert (answer["stop_type"], answer["truncated"]) == ("limit", True)
        assert answer["tokens_evaluated"] + answer["tokens_predicted"] == N_CTX
        assert ask(emberd, "/completion", **endless, cache_prompt=False) == answer
        assert ask(emberd, "/completion", n_probs=0)["truncated"] is False
        for path in ("/v1/completions", "/v1/chat/completions"):
            cut = ask(emberd, path, max_tokens=-1)
            assert cut["choices"][0]["finish_reason"] == "length"
        assert ask(emberd, "/v1/messages", max_tokens=-1)["stop_reason"] == "max_tokens"
        assert ask(emberd, "/v1/responses", max_tokens=-1)["status"] == "completed"
