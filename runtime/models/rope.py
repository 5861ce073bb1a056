"""Frequencies of rotary positions: how far each pair turns per position."""

from collections.abc import Sequence

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile


def linear_factor(f: ModelFile) -> float:
    """Divisor of positions by ``rope.scaling``: 1 without scaling.

    Errors: UnsupportedModel for scaling types other than none and linear.
    """
    kind = f.get_str(f.arch_key("rope.scaling.type"), default="none")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise UnsupportedModel(f"{f.path.name}: rope scaling {kind!r} is not supported")
    factor = f.get_float(f.arch_key("rope.scaling.factor"), default=1.0)
    if not factor > 0:
        raise ModelError(f"{f.path.name}: rope.scaling.factor must be positive, is {factor}")
    return factor


def frequencies(n_rot: int, base: float, factor: float = 1.0, divisors: Sequence[float] = ()) -> list[float]:
    """``base ** (-2i / n_rot) / factor / divisors[i]`` for each pair i, in float64.

    `divisors` are the entries of a ``rope_freqs`` tensor, one per pair; none means ones.
    """
    turns = [base ** (-2.0 * i / n_rot) / factor for i in range(n_rot // 2)]
    return [t / d for t, d in zip(turns, divisors, strict=True)] if len(divisors) else turns
