"""Logits are a function of model, settings and token ids alone: `==`, not "close"."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from runtime.evaluate import LinearSequence
from runtime.model import LoadedModel
from tests.models import gemma3_path, smollm2_path
from tests.runtime.evaluation import DATA, all_logits, model

N_TOKENS = 700  # past two block borders, past gemma's window of 512
CHUNKS = [1, 17, 256, 512]

TINY = [
    pytest.param(lambda n=n: DATA / "archs" / f"{n}.gguf", id=n) for n in ("llama", "llama-bias", "gemma3")
]
REAL = [
    pytest.param(smollm2_path, id="smollm2", marks=pytest.mark.slow),
    pytest.param(gemma3_path, id="gemma3-270m", marks=pytest.mark.slow),
]
MODELS = TINY + REAL


def prompt(loaded: LoadedModel, n: int = N_TOKENS, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, loaded.runner.n_vocab, n).astype(np.int32)


def same_logits(loaded: LoadedModel, tokens: npt.NDArray[np.int32], chunk: int, expected: np.ndarray) -> bool:
    """Compare step by step, so that only the reference is held whole."""
    sequence = LinearSequence(loaded.runner, len(tokens))
    at = 0
    for step in sequence.evaluate(tokens, (chunk,)):
        if not np.array_equal(step, expected[at : at + len(step)]):
            return False
        at += len(step)
    return at == len(tokens)


@pytest.mark.parametrize("path", MODELS)
def test_logits_do_not_depend_on_the_chunks_a_prompt_comes_in(path: Callable[[], Path]) -> None:
    with model(path(), n_ctx=N_TOKENS) as loaded:
        tokens = prompt(loaded)
        expected = all_logits(loaded, tokens)
        assert np.isfinite(expected).all()
        assert [chunk for chunk in CHUNKS if not same_logits(loaded, tokens, chunk, expected)] == []


@pytest.mark.parametrize("path", MODELS)
def test_logits_do_not_depend_on_the_number_of_threads(path: Callable[[], Path]) -> None:
    expected = None
    for n_threads in (1, 2, 3):
        with model(path(), n_ctx=N_TOKENS, n_threads=n_threads) as loaded:
            tokens = prompt(loaded)
            if expected is None:
                expected = all_logits(loaded, tokens)
            assert same_logits(loaded, tokens, 512, expected)
            assert same_logits(loaded, tokens, 33, expected)


@pytest.mark.parametrize("path", MODELS)
def test_logits_do_not_depend_on_the_threads_that_read_prompts(path: Callable[[], Path]) -> None:
    """Steps of one token and of many take turns, so threads join and leave the team between steps."""
    with model(path(), n_ctx=N_TOKENS, n_threads=1, n_threads_batch=3) as loaded:
        tokens = prompt(loaded, 150)
        expected = all_logits(loaded, tokens)
        assert np.array_equal(all_logits(loaded, tokens, (1, 17, 1, 1, 2)), expected)
    with model(path(), n_ctx=N_TOKENS, n_threads=3, n_threads_batch=1) as loaded:
        assert np.array_equal(all_logits(loaded, tokens, (1, 17, 1, 1, 2)), expected)


@pytest.mark.parametrize("path", MODELS)
def test_logits_do_not_depend_on_whether_weights_were_packed_at_load(path: Callable[[], Path]) -> None:
    with model(path(), n_ctx=N_TOKENS) as loaded:
        tokens = prompt(loaded, 60)
        expected = all_logits(loaded, tokens)
    with model(path(), n_ctx=N_TOKENS, repack=False) as loaded:
        assert same_logits(loaded, tokens, 60, expected)
        assert same_logits(loaded, tokens, 9, expected)
        assert same_logits(loaded, tokens[:8], 1, expected)


@pytest.mark.parametrize("path", MODELS)
def test_logits_do_not_depend_on_what_else_is_in_the_batch(path: Callable[[], Path]) -> None:
    """Three other sequences prefill and decode beside this one, in steps of changing composition."""
    with model(path(), n_ctx=N_TOKENS, max_runs=4) as loaded:
        tokens = prompt(loaded)
        expected = all_logits(loaded, tokens)
        runner = loaded.runner
        mine = LinearSequence(runner, N_TOKENS)
        others = [(LinearSequence(runner, N_TOKENS), prompt(loaded, seed=seed)) for seed in (1, 2, 3)]
        sizes = np.random.default_rng(4)
        at = 0
        while at < N_TOKENS:
            n = min(int(sizes.integers(1, 65)), N_TOKENS - at)
            runs = [mine.run(tokens[at : at + n], "all")]
            for sequence, ids in others:
                some = ids[sequence.n_tokens : sequence.n_tokens + int(sizes.choice([0, 1, 40]))]
                if len(some):
                    runs.insert(int(sizes.integers(0, len(runs) + 1)), sequence.run(some, "none"))
            assert np.array_equal(runner.step(runs), expected[at : at + n]), at
            at += n


def test_a_decode_far_into_the_context_is_split_over_threads_with_the_same_bits() -> None:
    """One query over several partitions takes the two-stage path; a prefill of the same token does not."""
    with model(DATA / "archs" / "llama.gguf", n_ctx=2048, n_threads=2) as loaded:
        tokens = prompt(loaded, 1600)
        expected = all_logits(loaded, tokens)
        sequence = LinearSequence(loaded.runner, 2048)
        for _ in sequence.evaluate(tokens[:1500], logits="none"):
            pass
        for i in range(1500, 1600):
            assert np.array_equal(loaded.runner.step([sequence.run(tokens[i : i + 1])])[0], expected[i]), i
