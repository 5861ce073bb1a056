"""The rope flags against llama.cpp: perplexities of tiny models, which every one of them changes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.config import build_config
from daemon.rope import rope_overrides
from runtime.model import ModelOptions, load_model
from tests.runtime.evaluation import arch
from tools.perplexity import negative_log_likelihoods

TEXT = Path(__file__).parents[1] / "data/text"
ORACLE: dict[str, Any] = json.loads((TEXT / "rope.json").read_text())


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [(name, flags, value) for name, values in ORACLE["llama.cpp"].items() for flags, value in values.items()],
)
def test_a_flag_means_what_it_means_to_llama_cpp(name: str, flags: str, expected: float) -> None:
    n_ctx = ORACLE["n_ctx"]
    config, _ = build_config(["-m", "x", *flags.split()], {})
    options = ModelOptions(
        n_ctx=n_ctx, n_ubatch=n_ctx // 2, n_threads=1, max_runs=1, max_outputs=n_ctx // 2,
        key_type="f32", value_type="f32", overrides=rope_overrides(config),
    )  # fmt: skip
    loaded = load_model(arch(name), options)
    try:
        ids = loaded.tokenizer.encode((TEXT / ORACLE["text"]).read_bytes(), add_special=True)
        tokens = np.array(ids[: ORACLE["chunks"] * n_ctx], np.int32)
        nll = np.concatenate(list(negative_log_likelihoods(loaded, tokens, n_ctx)))
    finally:
        loaded.close()
    assert math.exp(nll.mean()) == pytest.approx(expected, rel=5e-4)
