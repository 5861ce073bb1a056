"""Special tokens are found as llama.cpp finds them, and mean what their texts mean."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.gguf import open_model
from runtime.tokenizers import TokenType
from runtime.tokenizers.special import SpecialSplitter, StripRules
from runtime.tokenizers.vocabulary import KindDefaults, Vocabulary
from tests.runtime.tokenizers import naive
from tests.runtime.tokenizers.models import Entry, load, vocabulary
from tests.runtime.tokenizers.vocabularies import tokenizer

CONTROL, USER, NORMAL = TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.NORMAL


def splitter(folder: Path, entries: list[Entry], strip: StripRules = StripRules()) -> SpecialSplitter:  # noqa: B008
    with open_model(vocabulary("gpt2", entries).write(folder / "v.gguf")) as model:
        return SpecialSplitter(Vocabulary(model, KindDefaults()), strip)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("special")


@given(
    tokens=st.lists(
        st.text("ab<\u00e9 ", min_size=1, max_size=6),
        min_size=1,
        max_size=8,
        unique_by=lambda t: len(t.encode()),
    ),
    text=st.text("ab<\u00e9 \n", max_size=60),
    left=st.sets(st.integers(0, 7)),
    right=st.sets(st.integers(0, 7)),
)
def test_partitions_are_those_of_one_search_after_the_other(
    folder: Path, tokens: list[str], text: str, left: set[int], right: set[int]
) -> None:
    strip = StripRules(frozenset(left), frozenset(right))
    found = splitter(folder, [(token, CONTROL) for token in tokens], strip)
    ids = {token.encode(): id for id, token in enumerate(tokens)}
    expected = naive.partition(text.encode(), ids, strip.left, strip.right)
    assert found.split(text.encode(), parse_special=True) == expected
    assert found.split(text.encode(), parse_special=False) == ([text.encode()] if text else [])


def test_user_defined_tokens_are_always_parsed_and_control_tokens_on_request(folder: Path) -> None:
    found = splitter(folder, [("<c>", CONTROL), ("<u>", USER), ("<n>", NORMAL), ("<?>", TokenType.UNKNOWN)])
    text = b"<c><u><n><?>"
    assert found.split(text, parse_special=True) == [0, 1, b"<n>", 3]
    assert found.split(text, parse_special=False) == [b"<c>", 1, b"<n><?>"]


def test_a_longer_token_wins_even_if_a_shorter_one_begins_earlier(folder: Path) -> None:
    found = splitter(folder, [("aab", CONTROL), ("abcd", CONTROL), ("aa", CONTROL)])
    assert found.split(b"aabcd", parse_special=True) == [b"a", 1]
    assert found.split(b"aaabcd", parse_special=True) == [2, 1]


@pytest.mark.parametrize(
    "text", ["<" * 400_000, "<|im_end|>" * 40_000, "<|" * 200_000, "\n" * 400_000, "<html " * 60_000]
)
@pytest.mark.parametrize("name", ["qwen2", "real-gemma3-270m"])
def test_texts_full_of_candidates_take_linear_time(name: str, text: str) -> None:
    found = SpecialSplitter(tokenizer(name).vocab, StripRules())
    began = time.thread_time()
    found.split(text.encode(), parse_special=True)
    assert time.thread_time() - began < 3


def test_white_space_before_mask_is_eaten_in_the_models_known_for_it(tmp_path: Path) -> None:
    entries: list[Entry] = ["a", ("<mask>", CONTROL), "\u0120"]
    plain = load(tmp_path, vocabulary("gpt2", entries, pre="gpt-2"))
    eating = load(tmp_path, vocabulary("gpt2", entries, pre="jina-v2-code"))
    assert plain.encode("a <mask>") == [0, 2, 1]
    assert eating.encode("a <mask>") == [0, 1]


def test_texts_force_their_type_and_end_a_generation(tmp_path: Path) -> None:
    found = load(
        tmp_path, vocabulary("gpt2", ["<|im_end|>", ("</s>", USER), "a", "<|fim_pad|>"], pre="gpt-2")
    )
    assert found.eog_ids == {0, 1, 3}
    assert found.eot_id == 0 and found.fim_ids == {"fim_pad": 3}
    assert found.token_bytes(0) == b"" and found.token_bytes(0, special=True) == b"<|im_end|>"
    assert found.encode("</s>", parse_special=False) == []


def test_harmony_shows_its_channel_tokens_and_does_not_end_at_end(tmp_path: Path) -> None:
    texts = ["<|return|>", "<|call|>", "<|end|>", "<|channel|>", "<|message|>"]
    found = load(tmp_path, vocabulary("gpt2", [(text, CONTROL) for text in texts], pre="gpt-4o"))
    assert found.eog_ids == {0, 1}
    assert [found.token_bytes(id) for id in (2, 3)] == [b"<|end|>", b"<|channel|>"]
    assert found.encode("<|channel|><|end|>", parse_special=False) == [3, 2]


def test_sentence_ends_are_ordinary_where_tool_responses_are_known(tmp_path: Path) -> None:
    entries: list[Entry] = [("</s>", CONTROL), ("<|tool_response>", CONTROL)]
    found = load(tmp_path, vocabulary("gpt2", entries, pre="gpt-2"))
    assert found.eog_ids == {1} and found.vocab.types[0] == NORMAL


def test_ids_outside_of_the_vocabulary_do_not_count(tmp_path: Path) -> None:
    entries: list[Entry] = ["a", "b"]
    found = load(tmp_path, vocabulary("gpt2", entries, pre="gpt-2", eos_token_id=1, bos_token_id=77))
    assert (found.bos_id, found.eos_id, found.eog_ids) == (None, 1, {1})
