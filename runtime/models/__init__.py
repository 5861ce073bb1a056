"""Model files: one per architecture, each a forward pass written as a plan.

Importing this package loads no kernels, so that a tool can tell quickly what can run.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from runtime.errors import UnsupportedModel
from runtime.gguf import ModelFile

if TYPE_CHECKING:
    from runtime.plan.builder import Plan

_FILES = {
    "bailingmoe2": "dots1",
    "bert": "bert",
    "cohere2": "cohere",
    "command-r": "cohere",
    "deepseek2": "deepseek2",
    "deepseek32": "deepseek32",
    "deepseek4": "deepseek4",
    "dots1": "dots1",
    "ernie4_5": "llama",
    "ernie4_5-moe": "llama",
    "exaone4": "exaone4",
    "falcon-h1": "falcon_h1",
    "gemma": "gemma",
    "gemma-embedding": "gemma3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4",
    "glm-dsa": "deepseek32",
    "glm4": "glm4",
    "glm4moe": "glm4moe",
    "gpt-oss": "gpt_oss",
    "gpt2": "gpt2",
    "gptneox": "gptneox",
    "granite": "granite",
    "granitehybrid": "granite_hybrid",
    "granitemoe": "granite",
    "hunyuan-dense": "hunyuan",
    "hunyuan-moe": "hunyuan",
    "jina-bert-v2": "bert",
    "kimi-linear": "kimi_linear",
    "lfm2": "lfm2",
    "lfm2moe": "lfm2",
    "llama": "llama",
    "llama4": "llama4",
    "mamba": "mamba",
    "mamba2": "mamba",
    "minimax-m2": "minimax_m2",
    "mistral3": "mistral3",
    "modern-bert": "modern_bert",
    "nemotron": "nemotron",
    "nemotron_h": "nemotron_h",
    "nemotron_h_moe": "nemotron_h",
    "nomic-bert": "bert",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi2": "phi2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35",
    "qwen3moe": "qwen3",
    "qwen3next": "qwen35",
    "qwen3vl": "qwen3",
    "qwen3vlmoe": "qwen3",
    "rwkv7": "rwkv7",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "step35": "step35",
    "t5": "t5",
    "t5encoder": "t5",
}
"""File by architecture; relatives whose forward pass is the same share one."""

SUPPORTED = frozenset(_FILES)
_ENCODERS = frozenset(
    {"bert", "gemma-embedding", "jina-bert-v2", "modern-bert", "nomic-bert", "t5", "t5encoder"}
)


def is_encoder(file: ModelFile) -> bool:
    """Whether the model's tokens see those that follow: it gives embeddings and cannot generate.

    So says the architecture, or the file of one that otherwise generates.
    """
    causal = file.get_bool(file.arch_key("attention.causal"), default=True)
    return file.architecture in _ENCODERS or not causal


def builder(architecture: str, *, draft: bool = False) -> "Callable[[Plan], None]":
    """The `build` function of an architecture, or its `build_draft`. Errors: UnsupportedModel for none."""
    name = _FILES.get(architecture)
    if name is None:
        raise UnsupportedModel(
            f"architecture {architecture!r} is not supported (supported: {', '.join(sorted(SUPPORTED))})"
        )
    module = import_module(f"runtime.models.{name}")
    if draft and not hasattr(module, "build_draft"):
        raise UnsupportedModel(f"architecture {architecture!r} has no block that predicts a further token")
    build: Callable[[Plan], None] = module.build_draft if draft else module.build
    return build
