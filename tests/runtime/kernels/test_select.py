"""Greedy choice, top-k and log-sum-exp against numpy; ties go to the lowest id."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.kernels.select import argmax, log_sum_exp, top_k


def best(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    ids, values = np.full(k, -1, np.int32), np.zeros(k, np.float32)
    count = top_k(x.ctypes.data, len(x), k, ids.ctypes.data, values.ctypes.data)
    return ids[:count], values[:count]


logits = st.tuples(st.integers(1, 300), st.integers(0, 2**32 - 1), st.booleans())


def draw(spec: tuple[int, int, bool]) -> np.ndarray:
    n, seed, tied = spec
    x = np.random.default_rng(seed).standard_normal(n) * 4
    return (np.round(x) if tied else x).astype(np.float32)


@given(logits)
def test_argmax_is_the_first_of_the_largest(spec: tuple[int, int, bool]) -> None:
    x = draw(spec)
    assert argmax(x.ctypes.data, len(x)) == int(np.argmax(x))


@given(logits, st.integers(1, 320))
def test_top_k_is_a_stable_descending_sort_cut_at_k(spec: tuple[int, int, bool], k: int) -> None:
    x = draw(spec)
    ids, values = best(x, k)
    expected = np.argsort(-x, kind="stable")[:k]
    assert np.array_equal(ids, expected) and np.array_equal(values, x[expected])


@given(logits)
def test_log_sum_exp_is_accurate(spec: tuple[int, int, bool]) -> None:
    x = draw(spec)
    expected = np.logaddexp.reduce(x.astype(np.float64))
    assert log_sum_exp(x.ctypes.data, len(x)) == pytest.approx(expected, abs=1e-6)


def test_a_whole_vocabulary_is_searched() -> None:
    x = np.random.default_rng(3).standard_normal(262_144).astype(np.float32)
    ids, values = best(x, 40)
    expected = np.argsort(-x, kind="stable")[:40]
    assert np.array_equal(ids, expected) and np.array_equal(values, x[expected])
    assert argmax(x.ctypes.data, len(x)) == expected[0]
    reference = np.logaddexp.reduce(x.astype(np.float64))
    assert log_sum_exp(x.ctypes.data, len(x)) == pytest.approx(reference, abs=1e-6)


def test_masked_tokens_rank_last_and_numbers_that_are_none_are_never_chosen() -> None:
    x = np.full(50, -np.inf, np.float32)
    x[[7, 33]] = [1, 2]
    assert argmax(x.ctypes.data, 50) == 33
    assert list(best(x, 3)[0]) == [33, 7, 0]
    assert log_sum_exp(x.ctypes.data, 50) == pytest.approx(np.log(np.e + np.e**2), abs=1e-6)
    x[33] = np.nan
    assert argmax(x.ctypes.data, 50) == 7
    assert list(best(x, 2)[0]) == [7, 0]


def test_nothing_to_choose_from_gives_the_first_id() -> None:
    x = np.full(20, np.nan, np.float32)
    assert argmax(x.ctypes.data, 20) == 0
    assert len(best(x, 4)[0]) == 0
