"""Logits of the tiny models against those that llama.cpp computed for the same weights."""

import json

import numpy as np
import pytest

from runtime.model import load_model
from tests.runtime.evaluation import DATA, all_logits, model

ARCHS = ["llama", "llama-bias", "gemma3"]
TOLERANCE = 1e-3  # ten to a hundred times the reference's own noise, far below any mistake in the forward pass


def oracle(name: str, array: str) -> np.ndarray:
    """The array, or its exact-GELU form where there is one: the reference's GELU table has errors of its own."""
    arrays = np.load(DATA / "archs" / f"{name}.npz")
    exact = f"{array}_exactgelu"
    return arrays[exact] if exact in arrays else arrays[array]


@pytest.mark.parametrize("name", ARCHS)
def test_prompt_logits_equal_the_reference_with_f32_caches(name: str) -> None:
    tokens = oracle(name, "prompt_ids").astype(np.int32)
    with model(DATA / "archs" / f"{name}.gguf", n_ctx=256, cache_type="f32") as loaded:
        logits = all_logits(loaded, tokens)
    assert np.abs(logits - oracle(name, "prompt_logits")).max() < TOLERANCE


@pytest.mark.parametrize("name", ARCHS)
def test_greedy_continuation_equals_the_reference(name: str) -> None:
    prompt = oracle(name, "prompt_ids").astype(np.int32)
    expected = oracle(name, "gen_tokens").astype(np.int32)
    with model(DATA / "archs" / f"{name}.gguf", n_ctx=256, cache_type="f32") as loaded:
        logits = all_logits(loaded, np.concatenate([prompt, expected]))
    greedy = logits[len(prompt) - 1 : -1].argmax(axis=1)
    assert greedy.tolist() == expected.tolist()
    assert np.abs(logits[len(prompt) :] - oracle(name, "gen_logits")).max() < TOLERANCE


@pytest.mark.parametrize("name", ARCHS)
def test_identity_names_what_decides_cached_bytes(name: str) -> None:
    with model(DATA / "archs" / f"{name}.gguf", n_ctx=256) as f16, \
         model(DATA / "archs" / f"{name}.gguf", n_ctx=128, n_threads=1) as same, \
         model(DATA / "archs" / f"{name}.gguf", n_ctx=256, cache_type="f32") as f32:  # fmt: skip
        assert f16.identity == same.identity
        assert f16.identity != f32.identity
        json.dumps(f16.identity)


def test_an_unknown_architecture_is_refused_by_name() -> None:
    from runtime.errors import UnsupportedModel
    from runtime.model import ModelOptions

    with pytest.raises(UnsupportedModel, match="'nosuch'"):
        load_model(
            DATA / "archs" / "llama.gguf", ModelOptions(overrides=["general.architecture=str:nosuch"])
        )
