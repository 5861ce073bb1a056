"""Stop strings in text that arrives in pieces."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine.stops import StopSearch

TEXT = st.text("abc", max_size=40)
WORDS = st.lists(st.text("abc", max_size=5), max_size=4).map(tuple)


def search(pieces: list[str], words: tuple[str, ...]) -> tuple[str, str]:
    stops, sent = StopSearch(words), ""
    for piece in pieces:
        scan = stops.feed(piece)
        sent += scan.text
        if scan.word:
            return sent, scan.word
    return sent + stops.flush(), ""


def plain(text: str, words: tuple[str, ...]) -> tuple[str, str]:
    """The stop string that completes first, the longest of those that complete together."""
    for end in range(1, len(text) + 1):
        ending = [w for w in words if w and text[:end].endswith(w)]
        if ending:
            word = max(ending, key=len)
            return text[: end - len(word)], word
    return text, ""


@given(text=TEXT, words=WORDS, cuts=st.sets(st.integers(0, 40)))
def test_the_pieces_text_comes_in_do_not_matter(text: str, words: tuple[str, ...], cuts: set[int]) -> None:
    edges = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert search(pieces, words) == search([text], words) == plain(text, words)


@given(text=TEXT, words=WORDS)
def test_nothing_is_held_back_that_cannot_become_a_stop_string(text: str, words: tuple[str, ...]) -> None:
    stops, sent = StopSearch(words), ""
    for i, character in enumerate(text):
        scan = stops.feed(character)
        if scan.word:
            return
        sent += scan.text
        held = text[len(sent) : i + 1]
        assert not held or any(w.startswith(held) and w != held for w in words)


@pytest.mark.parametrize("n", [2_000, 20_000])
def test_a_long_periodic_stop_string_costs_linear_time(n: int) -> None:
    begun = time.thread_time()
    sent, word = search(["a" * 100] * (n // 100), ("a" * n + "b",))
    assert (len(sent), word) == (n, "")
    assert time.thread_time() - begun < 0.5
