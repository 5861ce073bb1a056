"""Ids and texts are those of llama.cpp, for every string of every vocabulary there are expectations for."""

import pytest

from tests.runtime.tokenizers.vocabularies import NAMES, cases, expectations, tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_exact(name: str) -> None:
    encode = tokenizer(name).encode
    for case in cases(name):
        found = (
            encode(case.data, parse_special=False),
            encode(case.data, parse_special=True),
            encode(case.data, add_special=True, parse_special=False),
            encode(case.data, add_special=True, parse_special=True),
        )
        assert found == (case.plain, case.parsed, case.plain_added, case.parsed_added), case.name


@pytest.mark.parametrize("name", NAMES)
def test_texts_are_exact(name: str) -> None:
    decode = tokenizer(name).decode_bytes
    for case in cases(name):
        assert decode(case.parsed_added, special=True) == case.text, case.name


@pytest.mark.parametrize("name", NAMES)
def test_special_ids_flags_and_ends_of_generation_are_exact(name: str) -> None:
    expected, found = expectations(name), tokenizer(name)
    assert sorted(found.eog_ids) == expected["eog"]
    flags = expected["flags"]
    assert (found.add_bos, found.add_eos) == (bool(flags["add_bos"]), bool(flags["add_eos"]))
    assert list(found.prefix_ids) == expected["prefix"] and list(found.suffix_ids) == expected["suffix"]
    assert found.n_vocab == expected["n_tokens"]
    for role in ("bos", "eos", "sep", "pad", "mask"):
        assert found.vocab.special.get(role, -1) == expected["special"][role], role


@pytest.mark.parametrize("name", NAMES)
def test_text_given_as_str_is_its_utf8(name: str) -> None:
    encode = tokenizer(name).encode
    for case in cases(name):
        try:
            text = case.data.decode()
        except UnicodeDecodeError:
            continue
        assert encode(text) == case.parsed, case.name
