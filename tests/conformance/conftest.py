"""The server that is asked: any one at EMBERD_CONFORMANCE_URL, else an emberd of our own with SmolLM2.

EMBERD_CONFORMANCE_KEY is its API key, if it wants one. The server needs a chat model, two slots of
512 to 4096 tokens, and ``--metrics --props --slot-save-path``.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.daemon.process import EmberdProcess
from tests.models import smollm2_path


@pytest.fixture(scope="session")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if url := os.environ.get("EMBERD_CONFORMANCE_URL"):
        yield url.rstrip("/")
        return
    saves: Path = tmp_path_factory.mktemp("saves")
    store: Path = tmp_path_factory.mktemp("store")
    flags = ("-np", "2", "-c", "2048", "--metrics", "--props", "--slot-save-path", str(saves))
    with EmberdProcess(smollm2_path(), *flags, "--store-path", str(store)) as emberd:
        yield emberd.url


@pytest.fixture(scope="session")
def client(base_url: str) -> Iterator[httpx.Client]:
    key = os.environ.get("EMBERD_CONFORMANCE_KEY", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # llama.cpp closes a connection after a number of requests, which no client can know
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=base_url, headers=headers, timeout=120, limits=limits) as client:
        yield client
