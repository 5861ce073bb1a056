"""Frequencies of rotary positions: how far each pair turns per position, and how longer contexts change that.

All of it is float64 arithmetic on a handful of numbers at load; its results are part of a model's identity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile
from runtime.plan.builder import Plan
from runtime.plan.values import Rope

KINDS = ("none", "linear", "yarn", "longrope")


def frequencies(n_rot: int, base: float, factor: float = 1.0, divisors: Sequence[float] = ()) -> list[float]:
    """``base ** (-2i / n_rot) / factor / divisors[i]`` for each pair i (Su et al. 2021, arXiv:2104.09864).

    `divisors` are the entries of a ``rope_freqs`` or ``rope_factors`` tensor, one per pair; none means ones.
    """
    turns = [base ** (-2.0 * i / n_rot) / factor for i in range(n_rot // 2)]
    return [t / d for t, d in zip(turns, divisors, strict=True)] if len(divisors) else turns


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a model's context was extended (``rope.scaling.*``).

    `factor` divides positions. The rest is for yarn: the context it was trained for first, where
    interpolation begins and ends (in turns over that context), and how much of it is used, by default all
    of it under yarn and else nothing. `magnitude` multiplies cosine and sine.
    """

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 0.0
    magnitude: float = 1.0

    @classmethod
    def read(cls, f: ModelFile) -> "Scaling":
        """Errors: UnsupportedModel for a kind not in `KINDS`, ModelError for numbers that make no sense."""

        def number(name: str, default: float) -> float:
            return f.get_float(f.arch_key(f"rope.scaling.{name}"), default=default)

        kind = f.get_str(f.arch_key("rope.scaling.type"), default="linear")
        if kind not in KINDS:
            raise UnsupportedModel(f"{f.path.name}: rope scaling {kind!r} is not supported")
        factor = number("factor", number("scale_linear", 0.0)) or 1.0
        trained = f.get_int(f.arch_key("context_length"))
        original = f.get_int(f.arch_key("rope.scaling.original_context_length"), default=0) or trained
        if factor <= 0 or original < 1:
            raise ModelError(
                f"{f.path.name}: rope scaling by {factor} from a context of {original} makes no sense"
            )
        fast, slow = number("yarn_beta_fast", 32.0), number("yarn_beta_slow", 1.0)
        log_multiplier, magnitude = number("yarn_log_multiplier", 0.0), number("attn_factor", 1.0)
        if fast <= 0 or slow <= 0 or log_multiplier < 0:
            raise ModelError(f"{f.path.name}: yarn by {fast}, {slow} and {log_multiplier} makes no sense")
        extrapolation = number("yarn_ext_factor", -1.0)
        if extrapolation < 0:
            extrapolation = 1.0 if kind == "yarn" else 0.0
        if kind == "none":
            factor, extrapolation = 1.0, 0.0
        elif extrapolation:
            magnitude *= yarn_magnitude(factor, log_multiplier)
        return cls(kind, factor, original, fast, slow, extrapolation, magnitude)

    def frequencies(self, n_rot: int, base: float, divisors: Sequence[float] = ()) -> list[float]:
        """Turns per position of each pair."""
        interpolated = frequencies(n_rot, base, self.factor, divisors)
        if self.extrapolation == 0.0:
            return interpolated
        extrapolated = frequencies(n_rot, base, 1.0, divisors)
        low, high = (self._correction(n_rot, base, beta) for beta in (self.beta_fast, self.beta_slow))
        low, high = max(0.0, math.floor(low)), min(n_rot - 1.0, math.ceil(high))
        out = []
        for i, (slow, fast) in enumerate(zip(interpolated, extrapolated, strict=True)):
            share = 1.0 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))
            share *= self.extrapolation
            out.append(slow * (1.0 - share) + fast * share)
        return out

    def _correction(self, n_rot: int, base: float, turns: float) -> float:
        """The pair that makes `turns` turns over the original context (arXiv:2309.00071, eq. 17)."""
        return n_rot * math.log(self.original_context / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))


def yarn_magnitude(factor: float, log_multiplier: float = 0.0) -> float:
    """Factor of cos and sin under yarn: ``1 + 0.1 ln(factor)`` (arXiv:2309.00071, eq. 22).

    Models with a log multiplier m have that divided by ``1 + 0.1 m ln(factor)``.
    """
    if factor <= 1.0:
        return 1.0
    log = math.log(factor)
    return (1.0 + 0.1 * log) / (1.0 + 0.1 * log_multiplier * log)


def base_of(f: ModelFile, key: str = "rope.freq_base", default: float = 10000.0) -> float:
    """Errors: ModelError for a base that is not above 1."""
    base = f.get_float(f.arch_key(key), default=default)
    if base <= 1.0:
        raise ModelError(f"{f.path.name}: {key} must be above 1, is {base}")
    return base


def rotated(f: ModelFile, d_k: int, key: str = "rope.dimension_count") -> int:
    """How many of a head's dims turn: all by default. Errors: ModelError for a count that cannot be."""
    n_rot = f.get_int(f.arch_key(key), default=d_k)
    if not 2 <= n_rot <= d_k or n_rot % 2:
        raise ModelError(f"{f.path.name}: {key} is {n_rot} for heads of {d_k}")
    return n_rot


def divisors(p: Plan, n_rot: int, name: str = "rope_freqs") -> Sequence[float]:
    """The file's own divisors of frequencies, if it has any. Errors: ModelError for zeros and the like."""
    if not p.weights.has(f"{name}.weight"):
        return ()
    values = p.weights.values(f"{name}.weight", n_rot // 2)
    if not (np.isfinite(values) & (values != 0)).all():
        raise ModelError(f"{p.file.path.name}: {name} divides rope frequencies by 0 or what is not a number")
    return list(map(float, values))


def rotation(p: Plan, d_k: int, *, neox: bool) -> Rope:
    """The rotation that the file describes with the keys and the tensor that most architectures use."""
    f, scaling = p.file, Scaling.read(p.file)
    n_rot = rotated(f, d_k)
    turns = scaling.frequencies(n_rot, base_of(f), divisors(p, n_rot))
    return p.rope(turns, neox=neox, magnitude=scaling.magnitude)


def plain(
    p: Plan, d_k: int, *, neox: bool, base: str = "rope.freq_base", default: float = 10000.0,
    count: str = "rope.dimension_count",
) -> Rope:  # fmt: skip
    """A rotation that no context extension touches: that of windowed layers."""
    return p.rope(frequencies(rotated(p.file, d_k, count), base_of(p.file, base, default)), neox=neox)
