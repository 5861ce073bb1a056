"""Every expression family cuts every string where llama.cpp cuts it."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.tokenizers import utf8
from runtime.tokenizers.families import FAMILIES
from runtime.tokenizers.pretokenizers import PRE_TYPES
from runtime.tokenizers.splitting import splitter
from tests.runtime.tokenizers.vocabularies import strings
from tests.shared_data import shared


def expand(lengths: list[int | list[int]]) -> list[int]:
    """``[n, k]`` stands for k pieces of length n."""
    expanded: list[int] = []
    for entry in lengths:
        expanded += [entry] if isinstance(entry, int) else [entry[0]] * entry[1]
    return expanded


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_are_exact(family: str) -> None:
    expected = json.loads(shared("tokenizers/splits.json").read_text())[family]
    split = splitter(family).split
    for (name, data), lengths in zip(strings(), expected, strict=True):
        if lengths is not None:
            assert [len(piece) for piece in split(utf8.decode(data))] == expand(lengths), name


@pytest.mark.parametrize("family", FAMILIES)
@given(
    text=st.text(
        st.sampled_from("aZ\u00e4\u03a91\u06625 \t\n\r'st.,-\u3000\u2028\u4e2d\u0301\uac00\U0001f600_"),
        max_size=60,
    )
)
@settings(max_examples=40)
def test_nothing_is_lost_between_the_pieces(family: str, text: str) -> None:
    pieces = splitter(family).split(text)
    assert "".join(pieces) == text and all(pieces)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("unit", [" ", "a", "A", "1", "\n", "=", " \t", "aA", " a", "\u4e2d", "'s", "\u0301"])
def test_no_text_takes_quadratic_time(family: str, unit: str) -> None:
    text = unit * (20_000 // len(unit)) + "x" + unit
    began = time.thread_time()
    splitter(family).split(text)
    assert time.thread_time() - began < 1


def test_all_92_pre_types_have_a_family() -> None:
    assert len(PRE_TYPES) == 92
    assert {pre.family for pre in PRE_TYPES.values()} == set(FAMILIES)
