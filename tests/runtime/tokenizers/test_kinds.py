"""Kinds and options that no shipped vocabulary covers, on vocabularies made for them."""

from pathlib import Path

import pytest

from runtime.errors import ModelError, UnsupportedModel
from runtime.tokenizers import TokenType
from tests.runtime.gguf.writer import STRING, File
from tests.runtime.tokenizers.models import Entry, load, vocabulary

BYTE, CONTROL, UNKNOWN = TokenType.BYTE, TokenType.CONTROL, TokenType.UNKNOWN
BYTES: list[Entry] = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]


def test_mmbert_starts_every_word_with_an_escaped_space(tmp_path: Path) -> None:
    entries: list[Entry] = ["\u2581", "a", "b", "\u2581a", "\n\n", "\n", "\u2581b"]
    file = vocabulary("gpt2", entries, pre="mmbert", merges=["\u2581 a", "\u2581 b"])
    encode = load(tmp_path, file).encode
    assert encode("a b") == [3, 6]
    assert encode("a  b\n\na\n\n\n") == [3, 0, 6, 4, 3, 5, 5, 5]


def test_unknown_characters_of_raw_bpe_become_bytes(tmp_path: Path) -> None:
    found = load(tmp_path, vocabulary("gpt2", [*BYTES, "a"], pre="sarvam-moe"))
    assert found.encode("a\u00e9") == [256, 0xC3, 0xA9]
    assert found.decode([256, 0xC3, 0xA9]) == "a\u00e9"


def test_whitespace_bpe_drops_white_space_and_lowers_case_on_request(tmp_path: Path) -> None:
    entries: list[Entry] = ["a", "b", "ab", "A"]
    kept = load(tmp_path, vocabulary("whitespace", entries, pre="whitespace", merges=["a b"]))
    assert kept.encode(" ab\u3000\tb A") == [2, 1, 3]
    lowered = vocabulary("whitespace", entries, pre="whitespace", merges=["a b"], normalizer__lowercase=True)
    assert load(tmp_path, lowered).encode("AB A") == [2, 0]


def test_dna_is_cut_in_runs_of_six_bases(tmp_path: Path) -> None:
    marker = "\ue000"
    entries: list[Entry] = ["<dna>", "</dna>", "<oov>", "ACGTAC" + marker, "GAAAAA" + marker, "x", "A"]
    found = load(tmp_path, vocabulary("hybriddna", entries, pre="gpt-2"))
    assert found.encode("x<dna>acgtacG</dna>A") == [5, 0, 3, 4, 1, 6]
    assert found.encode("<dna>ACGTNNACGTAC") == [0, 2, 3]
    assert found.token_bytes(3) == b"ACGTAC"


def test_plamo2_takes_the_best_path_and_spells_the_rest_in_bytes(tmp_path: Path) -> None:
    scored: list[Entry] = [("a", TokenType.NORMAL, -3.0), ("b", TokenType.NORMAL, -3.0)]
    scored += [
        ("ab", TokenType.NORMAL, -4.0),
        ("abc", TokenType.NORMAL, -2.0),
        ("bc", TokenType.NORMAL, -1.0),
    ]
    special: list[Entry] = [("<|plamo:unk|>", UNKNOWN)]
    found = load(tmp_path, vocabulary("plamo2", [*special, *BYTES, *scored]))
    first = 257
    assert found.encode("ab") == [first + 2]
    assert found.encode("abc") == [first + 3]
    assert found.encode("aabc") == [first, first + 3]
    assert found.encode("\ufeffbcz\u00e9") == [first + 4, 1 + 0x7A, 1 + 0xC3, 1 + 0xA9]
    assert found.decode(found.encode("bcz\u00e9")) == "bcz\u00e9"


def test_plamo2_prefers_the_longer_of_equal_tokens(tmp_path: Path) -> None:
    entries: list[Entry] = [(t, TokenType.NORMAL, s) for t, s in (("a", -1.0), ("aa", -2.0), ("aaa", -3.0))]
    assert load(tmp_path, vocabulary("plamo2", entries)).encode("aaaa") == [2, 0]


def test_rwkv_texts_are_unescaped(tmp_path: Path) -> None:
    found = load(tmp_path, vocabulary("rwkv", [r"\x00\xff", r"\n\t", r"\\a", r"\'", "ab", "a"]))
    assert found.encode(b"\x00\xff\n\t\\a'aba") == [0, 1, 2, 3, 4, 5]
    assert b"".join(map(found.token_bytes, range(4))) == b"\x00\xff\n\t\\a'"


def test_wordpiece_options_keep_case_and_accents(tmp_path: Path) -> None:
    entries: list[Entry] = [("[UNK]", UNKNOWN), "\u2581e", "\u2581E", "\u2581\u00c9", "\u2581\u00e9"]
    options = {"unknown_token_id": 0}
    assert load(tmp_path, vocabulary("bert", entries, **options)).encode("\u00c9") == [1]
    cased = vocabulary("bert", entries, normalizer__lowercase=False, **options)
    assert load(tmp_path, cased).encode("\u00c9E") == [0]
    assert load(tmp_path, cased).encode("\u00c9 E") == [3, 2]
    lower_only = vocabulary("bert", entries, normalizer__strip_accents=False, **options)
    assert load(tmp_path, lower_only).encode("\u00c9") == [4]


def test_clean_spaces_touches_whole_sequences_only(tmp_path: Path) -> None:
    entries: list[Entry] = ["a", "\u0120", ".", "'", "s", "t"]
    found = load(tmp_path, vocabulary("gpt2", entries, pre="gpt-2"))
    assert found.decode([0, 1, 2]) == "a."
    assert found.decode([0, 1, 3, 1, 0]) == "a'a"
    assert found.decode([0, 1, 3, 4]) == "a's"
    assert found.decode([0, 1, 3, 5]) == "a 't"
    assert b"".join(map(found.token_bytes, [0, 1, 2])) == b"a ."


def test_empty_texts_get_a_name(tmp_path: Path) -> None:
    found = load(tmp_path, vocabulary("gpt2", ["a", "", "b"], pre="gpt-2"))
    assert found.token_text(1) == "[EMPTY_1]"


@pytest.mark.parametrize("id", [-1, 3])
def test_ids_outside_of_the_vocabulary_have_no_text(tmp_path: Path, id: int) -> None:
    with pytest.raises(IndexError, match="outside of the vocabulary of 3"):
        load(tmp_path, vocabulary("gpt2", ["a", "b", "c"], pre="gpt-2")).token_bytes(id)


@pytest.mark.parametrize(
    ("file", "error", "message"),
    [
        (File().put("general.architecture", STRING, "llama"), UnsupportedModel, "has no tokenizer"),
        (vocabulary("none", ["a"]), UnsupportedModel, "has no tokenizer"),
        (vocabulary("klingon", ["a"]), UnsupportedModel, "tokenizer kind 'klingon' is not implemented"),
        (vocabulary("gpt2", ["a"], pre="klingon"), UnsupportedModel, "pre-tokenizer 'klingon' is not impl"),
        (vocabulary("llama", []), ModelError, "has no vocabulary"),
        (vocabulary("llama", ["a", "b", "a"]), ModelError, "two tokens have the same text: b'a'"),
        (vocabulary("gpt2", ["a"], pre=5), ModelError, r"tokenizer\.ggml\.pre should be a string"),
        (vocabulary("gpt2", ["a"], add_bos_token=1), ModelError, "add_bos_token should be a bool"),
        (vocabulary("gpt2", ["a"], merges="a b"), ModelError, "merges should be an array of strings"),
    ],
)
def test_vocabularies_that_cannot_be_used_are_refused(
    tmp_path: Path, file: File, error: type[ModelError], message: str
) -> None:
    with pytest.raises(error, match=message):
        load(tmp_path, file)
