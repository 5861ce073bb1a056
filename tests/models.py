"""Real models for tests: from the folder EMBERD_TEST_MODELS, or fetched as a user would into the cache."""

import os
from pathlib import Path
from typing import NoReturn

import pytest


def _model(file_name: str, fetch_name: str) -> Path:
    folder = os.environ.get("EMBERD_TEST_MODELS")
    if folder and (path := Path(folder) / file_name).exists():
        return path
    from tools.fetch import cached_model

    path_or_none = cached_model(fetch_name)
    if path_or_none is not None:
        return path_or_none
    return _missing(fetch_name, f"emberd fetch {fetch_name}")


def _missing(name: str, command: str) -> NoReturn:
    message = f"model {name} is not here: run `{command}`"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return _model("smollm2.gguf", "smollm2")


def gemma3_path() -> Path:
    """Gemma 3 270M Q4_K_M."""
    return _model("gemma3-270m.gguf", "gemma3-270m")


def minilm_path() -> Path:
    """all-MiniLM-L6-v2, F16."""
    from tools.minilm import default_path

    folder = os.environ.get("EMBERD_TEST_MODELS")
    for path in (*([Path(folder) / "minilm.gguf"] if folder else []), default_path()):
        if path.exists():
            return path
    return _missing("minilm", "emberd minilm")
