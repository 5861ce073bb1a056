"""Real models for tests: from the folder EMBERD_TEST_MODELS, or fetched as a user would into the cache."""

import os
from pathlib import Path

import pytest


def _model(file_name: str, fetch_name: str) -> Path:
    folder = os.environ.get("EMBERD_TEST_MODELS")
    if folder and (path := Path(folder) / file_name).exists():
        return path
    from tools.fetch import cached_model

    path_or_none = cached_model(fetch_name)
    if path_or_none is not None:
        return path_or_none
    message = f"model {fetch_name} is not here: run `emberd fetch {fetch_name}`"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return _model("smollm2.gguf", "smollm2")


def gemma3_path() -> Path:
    """Gemma 3 270M Q4_K_M."""
    return _model("gemma3-270m.gguf", "gemma3-270m")
