"""Where to go on reading a prompt, and where to leave a point to go on from: pure decisions.

The rules are design.md §5 and decisions.md §1-2; every position is a count of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from runtime.engine.messages import CacheSource


class CacheReason(StrEnum):
    """Why a request reuses as many tokens as it does and not more. `{n}` is that number."""

    IDENTICAL = "identical prompt, its last token is evaluated again"
    CONTINUES = "continues the cached prefix of {n} tokens"
    DIVERGES = "diverges at {n}"
    NO_CHECKPOINT = "no checkpoint before the divergence but at {n}"
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

    Of its `n_tokens` tokens the first `n_common` are the prompt's. With `any_point` it can be resumed
    anywhere in them (rows of attention), else only at exactly `n_tokens` (a tail state). `has_logits`: the
    logits after its last token are kept too, so nothing has to be evaluated to go on.
    """

    n_tokens: int
    n_common: int
    source: CacheSource
    any_point: bool = True
    has_logits: bool = False
    evicted: bool = False


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
    if candidate.any_point:
        return min(candidate.n_common, n_prompt - 1)
    if candidate.n_common < candidate.n_tokens:
        return 0
    limit = n_prompt if candidate.has_logits else n_prompt - 1
    return candidate.n_tokens if candidate.n_tokens <= limit else 0


def _reason(n_prompt: int, candidates: Sequence[Candidate], n: int) -> CacheReason:
    if not candidates:
        return CacheReason.COLD
    n_common = max(c.n_common for c in candidates)
    farthest = [c for c in candidates if c.n_common == n_common]
    if n < min(n_common, n_prompt - 1):
        return CacheReason.NO_CHECKPOINT
    if n_common >= n_prompt:
        return CacheReason.IDENTICAL
    if any(c.evicted for c in farthest):
        return CacheReason.EVICTED
    if any(c.n_tokens > n_common for c in farthest):
        return CacheReason.DIVERGES
    return CacheReason.CONTINUES if n else CacheReason.COLD


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """`--ctx-checkpoints`, `-interval` (≤ 0: no trigger) and `-tolerance` (≤ 0: at the prompt's end)."""

    max_count: int = 32
    interval: int = 512
    tolerance: int = 5


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
    end and release. Never twice at one position, never at none.
    """
    if policy.max_count <= 0 or position <= 0 or position == state.last_point:
        return False
    if state.releasing or position in state.turn_starts:
        return True
    if position == max(0, state.n_prompt - max(0, policy.tolerance)):
        return True
    return policy.interval > 0 and position - state.last_point >= policy.interval


def next_checkpoint(position: int, state: CheckpointState, policy: CheckpointPolicy) -> int | None:
    """The next position within the prompt where a point is due: a prefill chunk is cut there."""
    if policy.max_count <= 0:
        return None
    due = [turn for turn in state.turn_starts if turn > position]
    due.append(state.n_prompt - max(0, policy.tolerance))
    if policy.interval > 0:
        due.append(max(state.last_point + policy.interval, position + 1))
    return min((n for n in due if position < n <= state.n_prompt), default=None)
