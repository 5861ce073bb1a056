"""Every architecture gives the same bits in every schedule: chunks, threads, company in the batch."""

import numpy as np
import pytest

from runtime.evaluate import LinearSequence
from runtime.model import LoadedModel
from tests.runtime.evaluation import ARCHS, MOE_ARCHS, Logits, all_logits, arch, model

N_TOKENS = 60  # past the tiny models' windows of 16
CHUNKS = (1, 7, 48)


def prompt(loaded: LoadedModel, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, loaded.runner.n_vocab, N_TOKENS).astype(np.int32)


def in_company(loaded: LoadedModel, tokens: np.ndarray) -> Logits:
    """Logits of `tokens` in steps whose other runs prefill and decode, before and after it."""
    runner = loaded.runner
    mine, first, last = (LinearSequence(runner, N_TOKENS) for _ in range(3))
    out, at = [], 0
    for step, n in enumerate([5, 1, 30, 1, 1, 17, 5]):
        runs = [mine.run(tokens[at : at + n], "all")]
        runs.insert(
            0, first.run(prompt(loaded, 1)[first.n_tokens : first.n_tokens + 1 + 4 * (step % 3)], "none")
        )
        runs.append(last.run(prompt(loaded, 2)[last.n_tokens : last.n_tokens + 1 + 11 * (step % 2)], "none"))
        out.append(runner.step(runs).copy())
        at += n
    assert at == len(tokens)
    return np.concatenate(out)


@pytest.mark.parametrize("name", [*MOE_ARCHS, "mamba", "rwkv7", "granitehybrid", "nemotron_h_moe"])
def test_weights_that_stay_in_the_file_give_the_same_bits(name: str) -> None:
    with model(arch(name), n_ctx=256, n_ubatch=128) as loaded:
        tokens = prompt(loaded, 0)
        expected = all_logits(loaded, tokens)
    with model(arch(name), n_ctx=256, n_ubatch=128, repack=False) as loaded:
        assert np.array_equal(all_logits(loaded, tokens, (1, 7, 48)), expected)


@pytest.mark.parametrize("name", ARCHS)
def test_logits_have_the_same_bits_in_every_schedule(name: str) -> None:
    expected = None
    for n_threads in (1, 2, 3):
        with model(arch(name), n_ctx=256, n_threads=n_threads, max_runs=3, n_ubatch=128) as loaded:
            tokens = prompt(loaded, 0)
            if expected is None:
                expected = all_logits(loaded, tokens)
                assert np.isfinite(expected).all()
            for chunk in CHUNKS if n_threads == 2 else CHUNKS[1:]:
                assert np.array_equal(all_logits(loaded, tokens, (chunk,)), expected), (n_threads, chunk)
            assert np.array_equal(in_company(loaded, tokens), expected), n_threads
