"""The sampler chain against a plain reading of its formulas over the whole vocabulary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine import SamplingParams
from runtime.engine.randomness import resolve_seed, uniform
from runtime.engine.sampling import Sampler
from runtime.errors import NothingToSample, StepFailed

N_VOCAB = 3000
EOG = frozenset({7, 11})
HISTORY = np.array([1, 2, 2, 3, 3, 3, 500, 1], np.int32)


def row(seed: int, spread: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, N_VOCAB).astype(np.float32)


def reference(logits: np.ndarray, p: SamplingParams) -> dict[int, float]:
    """Final probabilities: logit bias → penalties → top-k → typical → top-p → min-p → temperature."""
    values = logits.astype(np.float64)
    for token, bias in p.logit_bias:
        if 0 <= token < len(values):
            values[token] += bias
    if p.ignore_eos:
        values[list(EOG)] = -np.inf
    window = HISTORY[-p.repeat_last_n :] if p.repeat_last_n else HISTORY[:0]
    if p.repeat_last_n < 0:
        window = HISTORY
    for token in set(window.tolist()):
        count = int((window == token).sum())
        v = values[token]
        v = v * p.repeat_penalty if v <= 0 else v / p.repeat_penalty
        values[token] = v - count * p.frequency_penalty - p.presence_penalty
    kept = sorted((t for t in range(len(values)) if np.isfinite(values[t])), key=lambda t: (-values[t], t))
    if p.top_k > 0:
        kept = kept[: p.top_k]
    if p.typical_p < 1:
        probs = _softmax(values[kept])
        entropy = -(probs * np.log(probs)).sum()
        order = np.argsort(np.abs(-np.log(probs) - entropy), kind="stable")
        n = _shortest(np.cumsum(probs[order]) > p.typical_p, p.min_keep)
        kept = [kept[i] for i in sorted(order[:n])]
    if p.top_p < 1:
        kept = kept[: _shortest(np.cumsum(_softmax(values[kept])) >= p.top_p, p.min_keep)]
    if p.min_p > 0:
        n = sum(values[t] >= values[kept[0]] + np.log(p.min_p) for t in kept)
        kept = kept[: max(n, p.min_keep, 1)]
    probs = _softmax(values[kept] / p.temperature)
    return dict(zip(kept, probs.tolist(), strict=True))


def _softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def _shortest(reached: np.ndarray, min_keep: int) -> int:
    n = int(reached.argmax()) + 1 if reached.any() else len(reached)
    return min(max(n, min_keep), len(reached))


PARAMS = st.builds(
    SamplingParams,
    seed=st.integers(0, 1000),
    temperature=st.floats(0.05, 3.0),
    top_k=st.sampled_from((0, -1, 1, 5, 40, 2999, 3000, 10_000)),
    top_p=st.sampled_from((1.0, 0.95, 0.5, 0.01, 0.0)),
    min_p=st.sampled_from((0.0, 0.05, 0.5, 1.0)),
    typical_p=st.sampled_from((1.0, 0.9, 0.3)),
    repeat_last_n=st.sampled_from((0, -1, 3, 64)),
    repeat_penalty=st.sampled_from((1.0, 1.3)),
    presence_penalty=st.sampled_from((0.0, 0.7)),
    frequency_penalty=st.sampled_from((0.0, -0.4)),
    min_keep=st.sampled_from((0, 3, 2000)),
    logit_bias=st.sampled_from(((), ((5, 4.0), (6, float("-inf")), (99_999, 1.0), (-3, 1.0)))),
    ignore_eos=st.booleans(),
    n_probs=st.just(N_VOCAB),
    post_sampling_probs=st.just(True),
)


@settings(max_examples=150, deadline=None)
@given(p=PARAMS, seed=st.integers(0, 10_000), spread=st.sampled_from((0.3, 1.0, 3.0)))
def test_the_chain_keeps_the_candidates_and_probabilities_of_its_formulas(
    p: SamplingParams, seed: int, spread: float
) -> None:
    output = Sampler(p, HISTORY, EOG, 4096).sample(row(seed, spread))
    want = {t: q for t, q in reference(row(seed, spread), p).items() if q > 0}
    got = {c.id: c.prob for c in output.top}
    # A candidate on the very edge of a cut may fall either way: float32 penalties here, float64 there.
    assert sum(want.get(t, 0.0) for t in want.keys() ^ got.keys()) < 2e-3
    assert all(abs(got[t] - want[t]) < 2e-3 for t in want.keys() & got.keys())
    assert output.chosen is not None and output.id == output.chosen.id
    assert output.id in got
    assert abs(sum(got.values()) - 1) < 1e-9


def test_draws_follow_the_distribution() -> None:
    logits = row(3)
    p = SamplingParams(seed=1, top_k=6, top_p=1.0, min_p=0.0, temperature=1.5)
    want = reference(logits, p)
    sampler = Sampler(p, HISTORY, EOG, 4096)
    n = 20_000
    drawn = np.bincount([sampler.sample(logits.copy()).id for _ in range(n)], minlength=N_VOCAB)
    chi_square = sum((drawn[t] - n * q) ** 2 / (n * q) for t, q in want.items())
    assert chi_square < 25.7  # the 0.9999 quantile for 5 degrees of freedom
    assert drawn.sum() == sum(drawn[t] for t in want)


def test_uniform_numbers_are_uniform_and_neighbouring_seeds_unrelated() -> None:
    numbers = np.array([[uniform(seed, i) for i in range(500)] for seed in range(40)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.bincount((numbers.ravel() * 20).astype(int), minlength=20)
    assert ((counts - 1000.0) ** 2 / 1000).sum() < 53  # the 0.9999 quantile for 19 degrees of freedom
    assert np.abs(np.corrcoef(numbers) - np.eye(40)).max() < 0.2
    assert np.abs(np.corrcoef(numbers.T[:100]) - np.eye(100)).max() < 0.8


def test_the_same_seed_repeats_and_minus_one_does_not() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed, temperature=2.0), HISTORY, EOG, 4096)
        return [sampler.sample(row(i)).id for i in range(30)]

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    assert draw(-1) != draw(-1)
    assert resolve_seed(0xFFFFFFFF) != 0xFFFFFFFF
    assert resolve_seed(1 << 32) == 0


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_greedy_takes_the_largest_and_the_lowest_id_of_equals(temperature: float) -> None:
    logits = row(1)
    logits[[40, 20, 30]] = 50.0
    assert Sampler(SamplingParams(temperature=temperature), HISTORY, EOG, 4096).sample(logits).id == 20


def test_greedy_obeys_bias_and_penalties() -> None:
    logits = np.zeros(N_VOCAB, np.float32)
    logits[3], logits[9] = 2.0, 1.9
    p = SamplingParams(temperature=0.0, repeat_penalty=2.0)
    assert Sampler(p, HISTORY, EOG, 4096).sample(logits.copy()).id == 9
    p = SamplingParams(temperature=0.0, logit_bias=((3, float("-inf")),))
    assert Sampler(p, HISTORY, EOG, 4096).sample(logits.copy()).id == 9


def test_generated_tokens_enter_the_penalty_window_and_leave_it() -> None:
    p = SamplingParams(temperature=0.0, presence_penalty=5.0, repeat_last_n=2)
    sampler = Sampler(p, np.array([], np.int32), EOG, 4096)
    logits = np.zeros(10, np.float32)
    logits[:4] = (4.0, 3.9, 3.8, 3.7)
    assert [sampler.sample(logits.copy()).id for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_probabilities_before_sampling_are_those_of_the_untouched_logits() -> None:
    logits = row(8)
    p = SamplingParams(seed=1, top_k=3, n_probs=5, repeat_penalty=1.5, logit_bias=((17, 9.0),))
    output = Sampler(p, HISTORY, EOG, 4096).sample(logits.copy())
    probs = _softmax(logits.astype(np.float64))
    assert [c.id for c in output.top] == np.argsort(-probs, kind="stable")[:5].tolist()
    for c in (*output.top, output.chosen):
        assert c.prob == pytest.approx(probs[c.id], rel=1e-4)
        assert c.logprob == pytest.approx(np.log(probs[c.id]), abs=1e-4)


def test_greedy_probabilities_after_sampling_are_certain() -> None:
    p = SamplingParams(temperature=0.0, n_probs=5, post_sampling_probs=True)
    output = Sampler(p, HISTORY, EOG, 4096).sample(row(2))
    assert [(c.id, c.prob) for c in output.top] == [(output.id, 1.0)]


def test_impossible_tokens_have_a_finite_log_probability() -> None:
    logits = row(2)
    logits[5] = -np.inf
    p = SamplingParams(seed=3, n_probs=N_VOCAB)
    top = Sampler(p, HISTORY, EOG, 4096).sample(logits).top
    assert top[-1].id == 5
    assert top[-1].prob == 0.0
    assert np.isfinite(top[-1].logprob)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_logits_that_are_not_numbers_are_an_error(temperature: float, poison: float) -> None:
    logits = row(2)
    logits[1234] = poison
    with pytest.raises(StepFailed, match="largest logit is"):
        Sampler(SamplingParams(temperature=temperature), HISTORY, EOG, 4096).sample(logits)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_bias_that_excludes_everything_is_an_error(temperature: float) -> None:
    bias = tuple((token, float("-inf")) for token in range(10))
    with pytest.raises(NothingToSample, match="bias and penalties"):
        Sampler(SamplingParams(temperature=temperature, logit_bias=bias), HISTORY, EOG, 4096).sample(
            np.zeros(10, np.float32)
        )


def test_extreme_parameters_still_choose_a_token() -> None:
    for p in (
        SamplingParams(seed=1, temperature=1e-310),
        SamplingParams(seed=1, temperature=1e30),
        SamplingParams(seed=1, top_p=-1.0),
        SamplingParams(seed=1, min_p=5.0),
        SamplingParams(seed=1, typical_p=-1.0),
        SamplingParams(seed=1, min_keep=10**9, top_k=0),
    ):
        assert 0 <= Sampler(p, HISTORY, EOG, 4096).sample(row(4)).id < N_VOCAB


@settings(max_examples=150, deadline=None)
@given(
    params=st.builds(
        SamplingParams,
        seed=st.just(3),
        temperature=st.sampled_from((0.0, 0.7)),
        top_k=st.sampled_from((0, 1, 40)),
        top_p=st.sampled_from((0.5, 1.0)),
        min_p=st.sampled_from((0.0, 0.1)),
        typical_p=st.sampled_from((0.5, 1.0)),
        repeat_last_n=st.sampled_from((-1, 0, 8)),
        repeat_penalty=st.sampled_from((1.0, 1.3)),
        frequency_penalty=st.sampled_from((0.0, 0.5)),
        presence_penalty=st.sampled_from((0.0, 0.5)),
        logit_bias=st.sampled_from(((), ((5, 2.0),))),
        ignore_eos=st.booleans(),
        n_probs=st.sampled_from((0, 3)),
        post_sampling_probs=st.booleans(),
    )
)
def test_a_sampler_changes_logits_only_if_it_says_so(params: SamplingParams) -> None:
    sampler = Sampler(params, HISTORY, EOG, 100)
    for seed in range(3):
        logits = row(seed)
        sampler.sample(logits)
        assert sampler.changes_logits or (logits == row(seed)).all()
