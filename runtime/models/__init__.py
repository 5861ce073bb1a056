"""Model files: one per architecture, each a forward pass written as a plan."""

from collections.abc import Callable
from importlib import import_module

from runtime.errors import UnsupportedModel
from runtime.plan.builder import Plan

_FILES = {"llama": "llama", "gemma3": "gemma3"}

SUPPORTED = frozenset(_FILES)


def builder(architecture: str) -> Callable[[Plan], None]:
    """The `build` function of an architecture. Errors: UnsupportedModel when there is none."""
    name = _FILES.get(architecture)
    if name is None:
        raise UnsupportedModel(f"architecture {architecture!r} is not supported (supported: {', '.join(sorted(SUPPORTED))})")
    build: Callable[[Plan], None] = import_module(f"runtime.models.{name}").build
    return build
