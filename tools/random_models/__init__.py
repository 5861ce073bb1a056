"""Models of real sizes with random weights, to measure speed where no small public model exists.

A model is written once, in some seconds, and is the same on every machine of one numpy version. It says
nothing sensible, which speed does not depend on. What its weights are made of are the types of real files:
Q4_K for most matrices, Q8_0 where rows are short, F32 and F16 where converters keep them.
"""

from collections.abc import Callable
from pathlib import Path

from tools.cache import cache_folder, publish
from tools.random_models import deepseek2, deepseek4, mamba2, qwen3moe, qwen35
from tools.random_models.writer import ModelWriter

RANDOM_MODELS: dict[str, Callable[[ModelWriter, bool], None]] = {
    "qwen3moe": qwen3moe.write,
    "qwen35": qwen35.write,
    "mamba2": mamba2.write,
    "deepseek2": deepseek2.write,
    "deepseek4": deepseek4.write,
}
"""By architecture: writes its tensors, few small ones where the flag asks for it."""


def write_random(name: str, path: Path, *, small: bool = False) -> None:
    """Write the random model `name` to `path`, which appears when it is whole."""
    part = path.with_name(path.name + ".part")
    writer = ModelWriter(name)
    RANDOM_MODELS[name](writer, small)
    writer.write(part)
    publish(part, path)


def random_model(name: str) -> Path:
    """The path of the random model `name` in the user's cache; written first if it is not there."""
    path = cache_folder("models") / f"random-{name}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_random(name, path)
    return path
