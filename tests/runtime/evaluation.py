"""Running models in tests: logits of token ids under every schedule that must not matter."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime.evaluate import LinearSequence
from runtime.model import LoadedModel, ModelOptions, load_model
from tests.shared_data import shared

DATA = Path(__file__).resolve().parents[1] / "data"

DENSE_ARCHS = (
    *("llama", "llama-bias", "qwen2", "qwen3", "qwen3vl", "phi3", "mistral3", "glm4", "granite", "smollm3"),
    *("olmo2", "olmo2-swa", "seed_oss", "exaone4", "exaone4-swa", "ernie4_5", "hunyuan-dense"),
    *("gemma", "gemma2", "gemma3", "starcoder2", "gpt2", "gptneox", "gptneox-seq", "phi2", "stablelm"),
    *("command-r", "cohere2", "nemotron", "gemma3n", "gemma4"),
)
MOE_ARCHS = (
    *("llama-moe", "qwen2moe", "qwen3moe", "granitemoe", "olmoe", "ernie4_5-moe", "hunyuan-moe", "dots1"),
    *("bailingmoe2", "minimax-m2", "step35", "glm4moe", "gpt-oss", "llama4", "gemma4-moe"),
)
LATENT_ARCHS = ("deepseek2", "deepseek2-lite", "deepseek32", "glm-dsa")
DELTA_ARCHS = ("qwen35", "qwen35moe", "qwen3next", "kimi-linear")
RECURRENT_ARCHS = ("mamba", "mamba2", "rwkv7")
HYBRID_ARCHS = (
    *("lfm2", "lfm2moe", "falcon-h1", "granitehybrid", "granitehybrid-dense", "nemotron_h"),
    "nemotron_h_moe",
)
ARCHS = DENSE_ARCHS + MOE_ARCHS + LATENT_ARCHS + DELTA_ARCHS + RECURRENT_ARCHS + HYBRID_ARCHS
"""Names of the tiny models; some stand for variants of one architecture."""

ENCODERS = ("bert", "nomic-bert", "modern-bert", "jina-bert-v2", "gemma-embedding")

Logits = npt.NDArray[np.float32]


def arch(name: str, ending: str = "gguf") -> Path:
    """A tiny model or, ending "npz", what the reference computed: of the project's data or the shared."""
    if (name, ending) == ("deepseek4", "gguf"):
        return shared("models/dsv4/dsv4-tiny-a-f32.gguf")
    path = DATA / "archs" / f"{name}.{ending}"
    return path if path.exists() else shared(f"models/archs/{name}.{ending}")


@contextmanager
def model(path: Path, *, n_ctx: int, n_threads: int = 2, cache_type: str = "f16", max_runs: int = 1,
          n_ubatch: int = 512, n_threads_batch: int = 0,
          repack: bool = True, embeddings: bool = False) -> Iterator[LoadedModel]:  # fmt: skip
    """A loaded model whose steps may ask for logits of every row."""
    options = ModelOptions(
        n_ctx=n_ctx, n_ubatch=n_ubatch, n_threads=n_threads, max_runs=max_runs, max_outputs=n_ubatch,
        key_type=cache_type, value_type=cache_type, n_threads_batch=n_threads_batch, repack=repack,
        embeddings=embeddings,
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


def hidden_rows(loaded: LoadedModel, *prompts: npt.NDArray[np.int32]) -> list[Logits]:
    """float32 [n_tokens, n_embd] of each prompt, computed in one step."""
    sequences = [LinearSequence(loaded.runner, len(tokens)) for tokens in prompts]
    runs = [sequence.run(tokens) for sequence, tokens in zip(sequences, prompts, strict=True)]
    ends = np.cumsum([len(tokens) for tokens in prompts])
    return np.split(loaded.runner.embed(runs).copy(), ends[:-1])


def last_logits(loaded: LoadedModel, tokens: npt.NDArray[np.int32], chunks: tuple[int, ...] = ()) -> Logits:
    """float32 [n_steps, n_vocab]: of the last token of each step."""
    sequence = LinearSequence(loaded.runner, len(tokens))
    return np.concatenate([step.copy() for step in sequence.evaluate(tokens, chunks, "last")])
