"""Real models against llama.cpp: the same weights and prompts, fed with the reference's own tokens."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.models import gemma3_path, smollm2_path
from tests.runtime.evaluation import DATA, all_logits, model

MODELS = [
    pytest.param(smollm2_path, "smollm2-135m-instruct-q4_1", id="smollm2"),
    pytest.param(gemma3_path, "gemma3-270m-q4_k_m", id="gemma3"),
]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(("path", "oracle"), MODELS)
def test_logprobs_follow_the_f32_reference(path: Callable[[], Path], oracle: str) -> None:
    """Activations are rounded to 8 bits, so text may part; each step's distribution may not."""
    reference = json.loads((DATA / "real" / f"{oracle}.json").read_text())["reference_f32"]
    deltas, disagreements = [], []
    with model(path(), n_ctx=2048) as loaded:
        for case in reference:
            ids = [step[0] for step in case["steps"]]
            tokens = np.array(case["prompt_ids"] + ids, np.int32)
            logprobs = log_softmax(all_logits(loaded, tokens)[len(case["prompt_ids"]) - 1 : -1])
            for row, (chosen, logprob, top) in zip(logprobs, case["steps"], strict=True):
                deltas.append(abs(row[chosen] - logprob))
                if top[0][1] - top[1][1] > 1.0 and int(row.argmax()) != top[0][0]:
                    disagreements.append((case["name"], top[:2], int(row.argmax())))
    assert np.median(deltas) <= 0.05
    assert np.max(deltas) <= 0.5
    assert not disagreements
