"""Running models in tests: logits of token ids under every schedule that must not matter."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime.evaluate import LinearSequence
from runtime.model import LoadedModel, ModelOptions, load_model

DATA = Path(__file__).resolve().parents[1] / "data"

Logits = npt.NDArray[np.float32]


@contextmanager
def model(path: Path, *, n_ctx: int, n_threads: int = 2, cache_type: str = "f16", max_runs: int = 1,
          n_ubatch: int = 512) -> Iterator[LoadedModel]:  # fmt: skip
    """A loaded model whose steps may ask for logits of every row."""
    options = ModelOptions(
        n_ctx=n_ctx, n_ubatch=n_ubatch, n_threads=n_threads, max_runs=max_runs, max_outputs=n_ubatch,
        key_type=cache_type, value_type=cache_type,
    )  # fmt: skip
    loaded = load_model(path, options)
    try:
        yield loaded
    finally:
        loaded.close()


def all_logits(loaded: LoadedModel, tokens: npt.NDArray[np.int32], chunks: tuple[int, ...] = ()) -> Logits:
    """float32 [n_tokens, n_vocab]."""
    sequence = LinearSequence(loaded.runner, len(tokens))
    return np.concatenate([step.copy() for step in sequence.evaluate(tokens, chunks)])


def last_logits(loaded: LoadedModel, tokens: npt.NDArray[np.int32], chunks: tuple[int, ...] = ()) -> Logits:
    """float32 [n_steps, n_vocab]: of the last token of each step."""
    sequence = LinearSequence(loaded.runner, len(tokens))
    return np.concatenate([step.copy() for step in sequence.evaluate(tokens, chunks, "last")])
