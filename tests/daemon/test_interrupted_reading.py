"""A prompt that was being read when the daemon was killed is not read from its beginning again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.process import EmberdProcess
from tests.models import smollm2_path

FLAGS = ("-np", "1", "-c", "8192", "-t", "1", "-ub", "64")


def prompt() -> list[int]:
    return [int(token) for token in np.random.default_rng(5).integers(100, 40_000, 8000)]


def complete(daemon: EmberdProcess, ids: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": ids, "n_predict": 4, "temperature": 0, "return_tokens": True, "n_probs": 3, **fields}
    answer = daemon.client.post("/completion", json=body).raise_for_status().json()
    assert isinstance(answer, dict)
    return answer


def kill_while_it_reads(daemon: EmberdProcess, ids: list[int]) -> int:
    """SIGKILL as soon as anything of the prompt is stored; how many tokens were read by then."""
    body = {"prompt": ids, "n_predict": 1, "stream": True, "return_progress": True}
    with daemon.client.stream("POST", "/completion", json=body) as response:
        for line in response.iter_lines():
            if not line:
                continue
            n_read = json.loads(line.removeprefix("data: "))["prompt_progress"]["processed"]
            assert n_read < len(ids), "all was read before anything was stored"
            if daemon.client.get("/store").json()["n_blocks"] >= 2:
                daemon.process.kill()
                daemon.process.wait()
                return int(n_read)
    raise AssertionError("the answer ended early")


@pytest.mark.slow
def test_what_was_read_of_a_prompt_before_a_kill_is_not_read_again(tmp_path: Path) -> None:
    flags = (*FLAGS, "--store-path", str(tmp_path))
    with EmberdProcess(smollm2_path(), *flags) as daemon:
        n_read = kill_while_it_reads(daemon, prompt())
    with EmberdProcess(smollm2_path(), *flags) as daemon:
        beginning = prompt()[: n_read + 100]
        answer = complete(daemon, beginning)
        assert answer["timings"]["cache_source"] == "store"
        assert answer["timings"]["cache_n"] >= 512
        cold = complete(daemon, beginning, cache_prompt=False, store=False)
        assert cold["timings"]["cache_n"] == 0
        assert answer["tokens"] == cold["tokens"]
        assert answer["completion_probabilities"] == cold["completion_probabilities"]
