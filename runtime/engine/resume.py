"""Where to go on reading a prompt, and where to leave a point to go on from: pure decisions.

The rules are design.md §5 and decisions.md §1-2; every position is a count of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from runtime.engine.messages import CacheSource

# Fewer tokens are read again sooner than a point is worth its bytes.
_APART = 64


class CacheReason(StrEnum):
    """Why a request reuses as many tokens as it does and not more. `{n}` is that number."""

    IDENTICAL = "identical prompt, its last token is evaluated again"
    ANSWERED = "identical prompt, all {n} tokens and the logits after them were kept"
    CONTINUES = "continues the cached prefix of {n} tokens"
    DIVERGES = "diverges at {n}"
    NO_CHECKPOINT = "no checkpoint nearer than at {n}"
    WINDOW_GONE = "rows of windowed layers are gone beyond {n}"
    EVICTED = "evicted from RAM from {n} on"
    COLD = "nothing cached"
    DISABLED = "cache_prompt is false"
    POOL_FULL = "no free memory blocks beyond {n}"
    STORE_SLOW = "the store did not answer in time"
    STORE_SHORT = "the store holds {n} tokens of it"

    def explain(self, n: int) -> str:
        return self.value.format(n=n)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something remembered that may begin the prompt.

    Of its `n_tokens` tokens the first `n_common` are the prompt's. It can be taken up anywhere in them (rows
    of attention), or with a tail only `at` that many. `has_logits`: the logits after those are kept too, so
    nothing has to be evaluated to go on. `window_gone`: it is `at` and not later for want of rows of windows.
    """

    n_tokens: int
    n_common: int
    source: CacheSource
    at: int | None = None
    has_logits: bool = False
    evicted: bool = False
    window_gone: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on at `n` tokens with `candidate` (an index into the candidates, None: from nothing)."""

    n: int
    source: CacheSource
    reason: CacheReason
    candidate: int | None = None

    def explain(self) -> str:
        return self.reason.explain(self.n)


def resume_point(n_prompt: int, candidates: Sequence[Candidate]) -> Resume:
    """The farthest usable point; of equals the first candidate, so the nearest tier comes first in the list.

    At least one token of the prompt is left to evaluate, unless the candidate carries the logits. A
    candidate whose verification fails is taken from the list and the question asked again.
    """
    best, best_n = None, 0
    for i, candidate in enumerate(candidates):
        n = _usable(candidate, n_prompt)
        if n > best_n:
            best, best_n = i, n
    source = CacheSource.NONE if best is None else candidates[best].source
    return Resume(best_n, source, _reason(n_prompt, candidates, best_n), best)


def _usable(candidate: Candidate, n_prompt: int) -> int:
    if candidate.at is None:
        return min(candidate.n_common, n_prompt - 1)
    limit = min(candidate.n_common, n_prompt if candidate.has_logits else n_prompt - 1)
    return candidate.at if candidate.at <= limit else 0


def _reason(n_prompt: int, candidates: Sequence[Candidate], n: int) -> CacheReason:
    if not candidates:
        return CacheReason.COLD
    n_common = max(c.n_common for c in candidates)
    farthest = [c for c in candidates if c.n_common == n_common]
    if n < min(n_common, n_prompt - 1):
        gone = any(c.window_gone for c in farthest)
        return CacheReason.WINDOW_GONE if gone else CacheReason.NO_CHECKPOINT
    if n == n_prompt:
        return CacheReason.ANSWERED
    if n_common >= n_prompt:
        return CacheReason.IDENTICAL
    if any(c.evicted for c in farthest):
        return CacheReason.EVICTED
    if any(c.n_tokens > n_common for c in farthest):
        return CacheReason.DIVERGES
    return CacheReason.CONTINUES if n else CacheReason.COLD


class Eviction(StrEnum):
    """Which point goes when a sequence has too many: `--ctx-checkpoints-eviction`."""

    FIFO = "fifo"
    VARIANCE = "variance"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """`--ctx-checkpoints`, `-interval` (≤ 0: no trigger), `-tolerance` (≤ 0: none before the prompt's end).

    Points of the interval are set at multiples of `alignment`, where a point is smallest, if it has any.
    """

    max_count: int = 32
    interval: int = 512
    tolerance: int = 5
    eviction: Eviction = Eviction.VARIANCE
    alignment: int = 1


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A sequence's newest point, created or restored (0: none), its prompt's length and its turns' starts."""

    last_point: int
    n_prompt: int
    turn_starts: frozenset[int] = frozenset()
    releasing: bool = False


def should_checkpoint(position: int, state: CheckpointState, policy: CheckpointPolicy) -> bool:
    """Is a point due now that `position` tokens are evaluated?

    Due are: a full interval since the last point, a turn's start, `tolerance` tokens before the prompt's
    end, that end, and release. Never twice at one position, never at none.
    """
    if policy.max_count <= 0 or position <= 0 or position == state.last_point:
        return False
    if state.releasing or position in state.turn_starts or position in _near_end(state, policy):
        return True
    return policy.interval > 0 and position >= _after_interval(state.last_point, policy)


def next_checkpoint(position: int, state: CheckpointState, policy: CheckpointPolicy) -> int | None:
    """The next position within the prompt where a point is due: a prefill chunk is cut there."""
    if policy.max_count <= 0:
        return None
    due = [*state.turn_starts, *_near_end(state, policy)]
    if policy.interval > 0:
        due.append(max(_after_interval(state.last_point, policy), position + 1))
    return min((n for n in due if position < n <= state.n_prompt), default=None)


def spaced_turns(turn_starts: Sequence[int], n_prompt: int) -> frozenset[int]:
    """The turns' starts that are worth a point: the last one, and before it such as lie apart.

    A prompt of many short turns is not to be read in chunks as short as they are.
    """
    kept: list[int] = []
    for start in sorted(set(turn_starts), reverse=True):
        if 0 < start <= n_prompt and (not kept or kept[-1] - start >= _APART):
            kept.append(start)
    return frozenset(kept)


def surplus(positions: Sequence[int], eviction: Eviction, wanted: int = 0) -> int:
    """Which of these ascending points is to go: an index.

    FIFO: the first. Else that between first and last whose neighbours lie closest, by the product of the gaps
    (`ik_llama.cpp`'s variance), so that the rest stays evenly spread; of two the first. The one at `wanted`
    stays as long as there is another between.
    """
    if eviction is Eviction.FIFO or len(positions) < 3:
        return 0
    gaps = [b - a for a, b in pairwise(positions)]
    between = range(1, len(positions) - 1)
    return min(between, key=lambda i: (positions[i] == wanted, gaps[i - 1] * gaps[i]))


def _near_end(state: CheckpointState, policy: CheckpointPolicy) -> tuple[int, int]:
    return state.n_prompt - max(0, policy.tolerance), state.n_prompt


def _after_interval(last_point: int, policy: CheckpointPolicy) -> int:
    due = last_point + policy.interval
    rounded = due // policy.alignment * policy.alignment
    return rounded if rounded > last_point else due
