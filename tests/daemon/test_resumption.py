"""Every kind of memory is taken up again where a conversation was left, or shortly before an edit.

Some can go on only where a point was captured. That may cost a reader of the API an interval at most, in RAM,
after a restart and after a kill, and it changes no number.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.process import EmberdProcess
from tests.runtime.evaluation import arch

MODELS = ("gemma3", "gpt-oss", "qwen35", "lfm2", "mamba2", "rwkv7", "granitehybrid", "deepseek2")
INTERVAL, TOLERANCE = 256, 5
FLAGS = (
    *("-np", "1", "-c", "4096", "-t", "2"),
    *("--ctx-checkpoints-interval", str(INTERVAL), "--ctx-checkpoints-tolerance", str(TOLERANCE)),
)


def models(quick: str) -> list[Any]:
    """Every kind of memory; all but one are slow."""
    return [name if name == quick else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


def ids(seed: int, n_tokens: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 250, n_tokens)]


def complete(daemon: EmberdProcess, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 5, "temperature": 0, "return_tokens": True, "n_probs": 3}
    answer = daemon.client.post("/completion", json=body | fields).raise_for_status().json()
    assert isinstance(answer, dict)
    return answer


def check(daemon: EmberdProcess, prompt: list[int], at_least: int, at_most: int) -> dict[str, Any]:
    """Ask, see how much was reused, and compare with what is computed from nothing."""
    answer = complete(daemon, prompt)
    assert at_least <= answer["timings"]["cache_n"] <= at_most, answer["timings"]
    cold = complete(daemon, prompt, cache_prompt=False, store=False)
    assert cold["timings"]["cache_n"] == 0
    assert answer["tokens"] == cold["tokens"]
    assert answer["completion_probabilities"] == cold["completion_probabilities"]
    return answer


def settle(daemon: EmberdProcess) -> None:
    """Wait until everything offered so far is in the store."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        store = daemon.client.get("/store").json()
        if (
            store["n_blocks"]
            and not store["queue_bytes"]
            and not daemon.client.get("/slots").json()[0]["is_processing"]
        ):
            return
        time.sleep(0.1)
    raise AssertionError("the store did not come to rest")


@pytest.mark.parametrize("name", models(quick="rwkv7"))
def test_a_save_goes_on_at_its_end_after_a_restart(tmp_path: Path, name: str) -> None:
    model, flags = arch(name), (*FLAGS, "--store-path", str(tmp_path))
    prompt = ids(1, 1500)
    with EmberdProcess(model, *flags) as daemon:
        answer = complete(daemon, prompt)
        saved = daemon.client.post("/slots/0?action=save", json={"filename": "x"}).raise_for_status().json()
        assert saved["n_saved"] >= len(prompt)
        assert saved["n_resumable"] == saved["n_saved"]
        assert daemon.terminate() == 0
    with EmberdProcess(model, *flags) as daemon:
        restore = daemon.client.post("/slots/0?action=restore", json={"filename": "x"})
        restored = restore.raise_for_status().json()
        assert restored["n_restored"] == restored["n_resumable"] == saved["n_saved"]
        longer = (prompt + answer["tokens"])[: saved["n_saved"]] + ids(2, 40)
        check(daemon, longer, saved["n_saved"] - 1, saved["n_saved"])


@pytest.mark.parametrize("name", models(quick="lfm2"))
def test_an_edit_in_the_middle_costs_at_most_an_interval(tmp_path: Path, name: str) -> None:
    model, flags = arch(name), (*FLAGS, "--store-path", str(tmp_path))
    prompt = ids(1, 1500)

    def edited(seed: int, shared: int) -> list[int]:
        return prompt[:shared] + ids(seed, 100)

    with EmberdProcess(model, *flags) as daemon:
        complete(daemon, prompt)
        check(daemon, edited(3, 1000), 1000 - INTERVAL - TOLERANCE, 1000)
        settle(daemon)
        assert daemon.terminate() == 0
    with EmberdProcess(model, *flags) as daemon:
        answer = check(daemon, edited(4, 700), 700 - INTERVAL - TOLERANCE, 700)
        assert answer["timings"]["cache_source"] == "store"
        fresh = ids(5, 900)
        complete(daemon, fresh)
        settle(daemon)
        daemon.process.kill()
        daemon.process.wait()
    with EmberdProcess(model, *flags) as daemon:
        check(daemon, edited(6, 1300), 1300 - INTERVAL - TOLERANCE, 1300)
        check(daemon, fresh[:600] + ids(7, 50), 600 - INTERVAL - TOLERANCE, 600)
