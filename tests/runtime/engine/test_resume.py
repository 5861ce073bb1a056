"""The tables of resume and checkpoint decisions."""

import pytest

from runtime.engine import CacheReason, CacheSource
from runtime.engine.resume import (
    Candidate,
    CheckpointPolicy,
    CheckpointState,
    next_checkpoint,
    resume_point,
    should_checkpoint,
)

RAM, STORE, NONE = CacheSource.RAM, CacheSource.STORE, CacheSource.NONE


def rows(n_tokens: int, n_common: int, source: CacheSource = RAM, evicted: bool = False) -> Candidate:
    return Candidate(n_tokens, n_common, source, evicted=evicted)


def point(n_tokens: int, n_common: int, source: CacheSource = RAM, has_logits: bool = False) -> Candidate:
    return Candidate(n_tokens, n_common, source, n_tokens, has_logits)


@pytest.mark.parametrize(
    ("why", "n_prompt", "candidates", "n", "source", "reason", "chosen"),
    [
        ("nothing known", 100, [], 0, NONE, CacheReason.COLD, None),
        ("nothing in common, other things known", 100, [rows(50, 0)], 0, NONE, CacheReason.DIVERGES, None),
        ("an empty slot", 100, [rows(0, 0)], 0, NONE, CacheReason.COLD, None),
        ("plain continuation", 100, [rows(60, 60)], 60, RAM, CacheReason.CONTINUES, 0),
        ("divergence", 100, [rows(80, 60)], 60, RAM, CacheReason.DIVERGES, 0),
        ("identical prompt", 100, [rows(100, 100)], 99, RAM, CacheReason.IDENTICAL, 0),
        ("prompt within what is known", 100, [rows(180, 100)], 99, RAM, CacheReason.IDENTICAL, 0),
        ("a prompt of one token", 1, [rows(10, 1)], 0, NONE, CacheReason.IDENTICAL, None),
        ("the farthest wins", 100, [rows(40, 40), rows(90, 70)], 70, RAM, CacheReason.DIVERGES, 1),
        ("the nearest of equals", 100, [rows(9, 9), rows(9, 9, STORE)], 9, RAM, CacheReason.CONTINUES, 0),
        ("the far tier has more", 100, [rows(50, 50), rows(70, 70, STORE)], 70, STORE,
         CacheReason.CONTINUES, 1),
        ("made room", 100, [rows(50, 50, evicted=True)], 50, RAM, CacheReason.EVICTED, 0),
        # A state can only be taken up where it was left (dsv4.md §8, store-peers.md §2 rows 1, 10-13).
        ("a point exactly at the divergence", 100, [point(60, 60)], 60, RAM, CacheReason.CONTINUES, 0),
        ("a point past the divergence", 100, [point(61, 60)], 0, NONE, CacheReason.NO_CHECKPOINT, None),
        ("the last usable point", 100, [point(90, 70), point(64, 64), point(32, 32)], 64, RAM,
         CacheReason.NO_CHECKPOINT, 1),
        ("identical prompt, point at its end", 100, [point(100, 100), point(95, 95)], 95, RAM,
         CacheReason.NO_CHECKPOINT, 1),
        ("identical prompt, logits kept", 100, [point(100, 100, has_logits=True)], 100, RAM,
         CacheReason.ANSWERED, 0),
        ("a point at the last token but one", 100, [point(99, 99)], 99, RAM, CacheReason.CONTINUES, 0),
        ("a point beyond the prompt", 100, [point(150, 100)], 0, NONE, CacheReason.NO_CHECKPOINT, None),
    ],
)  # fmt: skip
def test_resume_point(
    why: str,
    n_prompt: int,
    candidates: list[Candidate],
    n: int,
    source: CacheSource,
    reason: CacheReason,
    chosen: int | None,
) -> None:
    resume = resume_point(n_prompt, candidates)
    assert (resume.n, resume.source, resume.reason, resume.candidate) == (n, source, reason, chosen), why


def test_a_candidate_that_failed_verification_is_replaced_by_the_next() -> None:
    candidates = [point(64, 64, STORE), point(32, 32)]
    first = resume_point(100, candidates)
    assert first.n == 64
    del candidates[first.candidate]
    assert resume_point(100, candidates).n == 32


def test_reasons_are_sentences_with_the_number_in_them() -> None:
    assert resume_point(2000, [rows(1500, 1234)]).explain() == "diverges at 1234"
    assert all("{" not in reason.explain(5) for reason in CacheReason)


def trail(
    policy: CheckpointPolicy, n_prompt: int, n_end: int, chunk: int, turns: tuple[int, ...] = ()
) -> list[int]:
    """Positions of the points of one request from nothing to `n_end` tokens and release."""
    made, last, position = [], 0, 0
    while position < n_end:
        state = CheckpointState(last, n_prompt, frozenset(turns))
        end = min(position + chunk, n_prompt) if position < n_prompt else position + 1
        cut = next_checkpoint(position, state, policy) if position < n_prompt else None
        position = end if cut is None else min(end, cut)
        if should_checkpoint(position, state, policy):
            made.append(position)
            last = position
    if should_checkpoint(position, CheckpointState(last, n_prompt, frozenset(turns), True), policy):
        made.append(position)
    return made


@pytest.mark.parametrize("chunk", [1, 17, 512, 10_000])
@pytest.mark.parametrize(
    ("why", "policy", "n_prompt", "n_end", "turns", "points"),
    [
        ("decisions.md §1", CheckpointPolicy(interval=2048), 8494, 8494, (),
         [2048, 4096, 6144, 8192, 8489, 8494]),
        ("no interval", CheckpointPolicy(interval=0), 8494, 8500, (), [8489, 8494, 8500]),
        ("no tolerance: prompt end", CheckpointPolicy(interval=-1, tolerance=0), 100, 130, (), [100, 130]),
        ("in the answer", CheckpointPolicy(interval=50, tolerance=0), 60, 170, (), [50, 60, 110, 160, 170]),
        ("turn starts", CheckpointPolicy(interval=0), 100, 100, (30, 70), [30, 70, 95, 100]),
        ("rings are smallest at their period", CheckpointPolicy(interval=300, tolerance=0, alignment=128),
         1000, 1400, (), [256, 512, 768, 1000, 1280, 1400]),
        ("an interval shorter than the period", CheckpointPolicy(interval=100, tolerance=0, alignment=128),
         310, 310, (), [100, 128, 228, 256, 310]),
        ("turned off", CheckpointPolicy(max_count=0), 8494, 8500, (30,), []),
        ("a prompt shorter than the tolerance", CheckpointPolicy(), 4, 10, (), [4, 10]),
    ],
)  # fmt: skip
def test_points_of_a_request(
    why: str,
    policy: CheckpointPolicy,
    n_prompt: int,
    n_end: int,
    turns: tuple[int, ...],
    points: list[int],
    chunk: int,
) -> None:
    assert trail(policy, n_prompt, n_end, chunk, turns) == points, why


@pytest.mark.parametrize(
    ("why", "position", "state", "due"),
    [
        ("five tokens after a restore", 1005, CheckpointState(1000, 5000), False),
        ("just restored", 1000, CheckpointState(1000, 5000), False),
        ("an interval after a restore", 1512, CheckpointState(1000, 5000), True),
        ("release always", 1001, CheckpointState(1000, 900, releasing=True), True),
        ("release without a new token", 1000, CheckpointState(1000, 900, releasing=True), False),
        ("nothing evaluated", 0, CheckpointState(0, 5), False),
    ],
)
def test_should_checkpoint(why: str, position: int, state: CheckpointState, due: bool) -> None:
    assert should_checkpoint(position, state, CheckpointPolicy()) is due, why
