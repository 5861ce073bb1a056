"""The fast merge loops give what merging pair by pair gives."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tokenizers.merging import merge_symbols
from runtime.tokenizers.vocabulary import SPACE
from tests.runtime.tokenizers import naive
from tests.runtime.tokenizers.vocabularies import tokenizer

LETTERS = st.sampled_from([b"a", b"b", b"c"])
TEXTS = st.lists(LETTERS, max_size=90)


@given(
    text=TEXTS,
    merges=st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.binary(min_size=1, max_size=3))),
)
def test_ranked_pairs(text: list[bytes], merges: list[tuple[bytes, bytes]]) -> None:
    letters = [tuple(bytes(97 + byte % 3 for byte in part) for part in pair) for pair in merges]
    ranks = {b" ".join(pair): i for i, pair in reversed(list(enumerate(letters)))}
    assert merge_symbols(list(text), dict(ranks), b" ") == naive.merge(
        text, lambda a, b: ranks.get(a + b" " + b)
    )


@given(text=TEXTS, scores=st.dictionaries(st.binary(min_size=2, max_size=4), st.integers(0, 3), max_size=30))
def test_scored_texts_with_many_equal_scores(text: list[bytes], scores: dict[bytes, int]) -> None:
    ranks = {bytes(97 + byte % 3 for byte in token): score for token, score in scores.items()}
    assert merge_symbols(list(text), dict(ranks), b"") == naive.merge(text, lambda a, b: ranks.get(a + b))


@pytest.mark.parametrize("symbols", [[b"a"] * 200_000, [b"a", b"b"] * 100_000])
def test_long_repetitions_are_not_quadratic(symbols: list[bytes]) -> None:
    ranks = {b"a" * n + b" " + b"a" * n: n for n in (1, 2, 4, 8)} | {b"a b": 9, b"ab ab": 10}
    began = time.thread_time()
    merge_symbols(symbols, ranks, b" ")
    assert time.thread_time() - began < 5


@given(text=st.text(st.sampled_from("ab \u2581.\n<>=\u00e4\u4e2d"), max_size=40))
def test_words_of_spm_are_independent(text: str) -> None:
    found = tokenizer("llama-spm")
    scores = found.vocab.scores
    assert scores is not None

    def rank(a: bytes, b: bytes) -> float | None:
        id = found.vocab.ids.get(a + b)
        return None if id is None else -float(scores[id])

    escaped = (" " + text if text else "").replace(" ", SPACE.decode())
    merged = naive.merge([char.encode() for char in escaped], rank)
    expected: list[int] = []
    for symbol in merged:
        id = found.vocab.ids.get(symbol)
        expected += [found.vocab.ids[b"<0x%02X>" % byte] for byte in symbol] if id is None else [id]
    assert found.encode(text, parse_special=False) == expected
