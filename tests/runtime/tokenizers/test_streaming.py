"""A stream of tokens becomes text in whole characters, and nothing else than the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tokenizers import StreamDetokenizer
from tests.runtime.tokenizers.vocabularies import cases, tokenizer

NAMES = ("gpt-2", "llama-spm", "rwkv-world", "bert-bge")


def stream(name: str, ids: list[int], special: bool) -> list[str]:
    detokenizer = StreamDetokenizer(tokenizer(name), special=special)
    return [detokenizer.feed(id) for id in ids] + [detokenizer.flush()]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_pieces_joined_are_the_bytes_of_all_tokens(name: str, data: st.DataObject) -> None:
    found = tokenizer(name)
    ids = data.draw(st.lists(st.integers(0, found.n_vocab - 1), max_size=40))
    special = data.draw(st.booleans())
    whole = b"".join(found.token_bytes(id, special=special) for id in ids)
    assert "".join(stream(name, ids, special)) == whole.decode("utf-8", "replace")


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text(max_size=40))
def test_a_character_is_never_cut(name: str, text: str) -> None:
    ids = tokenizer(name).encode(text)
    if name == "bert-bge" or "\ufffd" in text:
        return
    *pieces, rest = stream(name, ids, special=True)
    assert not any("\ufffd" in piece for piece in pieces) and rest == ""


@pytest.mark.parametrize("name", NAMES)
def test_real_texts_stream_to_what_their_bytes_say(name: str) -> None:
    found = tokenizer(name)
    for case in cases(name):
        whole = b"".join(found.token_bytes(id, special=True) for id in case.parsed)
        assert "".join(stream(name, case.parsed, special=True)) == whole.decode("utf-8", "replace")


def test_an_unfinished_character_is_replaced_only_at_the_end() -> None:
    ids = tokenizer("gpt-2").encode("\U0001f600")
    assert len(ids) > 1
    assert stream("gpt-2", ids[:-1], special=False) == [""] * (len(ids) - 1) + ["\ufffd"]
