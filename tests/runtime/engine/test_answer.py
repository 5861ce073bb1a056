"""Tokens become text, and something ends it: in llama-server's order of checks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine import GenerateRequest, SamplingParams, StopReason
from runtime.engine.answer import Answer
from runtime.tokenizers import StreamDetokenizer
from tests.runtime.engine.fakes import EOG, N_VOCAB, FakeTokenizer

BYTES = FakeTokenizer()


def answer(n_predict: int = -1, stop: tuple[str, ...] = (), n_prompt: int = 4, n_ctx: int = 1000) -> Answer:
    request = GenerateRequest(
        1, np.zeros(n_prompt, np.int32), SamplingParams(temperature=0.0), n_predict=n_predict, stop=stop
    )
    return Answer(request, StreamDetokenizer(BYTES), frozenset({EOG}), n_ctx)


def feed(it: Answer, ids: list[int]) -> tuple[list[str], list[int], StopReason]:
    texts, out = [], []
    for token in ids:
        logits = np.zeros(N_VOCAB, np.float32)
        logits[token] = 9.0
        piece = it.advance(logits)
        texts.append(piece.text)
        out += [o.id for o in piece.outputs]
        if piece.reason is not StopReason.NONE:
            return texts, out, piece.reason
    return texts, out, StopReason.NONE


def test_text_comes_with_the_token_that_completes_a_character() -> None:
    it = answer()
    texts, ids, _ = feed(it, list("aé€".encode()))
    assert texts == ["a", "", "é", "", "", "€"]
    assert ids == list("aé€".encode())


def test_tokens_of_a_character_wait_for_its_text() -> None:
    it = answer()
    assert feed(it, list("é".encode())[:1])[1] == []


def test_the_text_and_tokens_of_a_stop_string_are_not_sent() -> None:
    it = answer(stop=("END",))
    texts, ids, reason = feed(it, list(b"ab E ENDx"))
    assert "".join(texts) == "ab E "
    assert bytes(ids) == b"ab E "
    assert (reason, it.stopping_word) == (StopReason.WORD, "END")


def test_a_token_that_is_partly_before_the_stop_string_is_sent() -> None:
    tokenizer = FakeTokenizer({1: b"xEN", 2: b"Dy"})
    request = GenerateRequest(1, np.zeros(1, np.int32), SamplingParams(temperature=0.0), stop=("END",))
    it = Answer(request, StreamDetokenizer(tokenizer), frozenset({EOG}), 100)
    texts, ids, reason = feed(it, [1, 2])
    assert ("".join(texts), ids, reason) == ("x", [1], StopReason.WORD)


def test_a_budget_releases_what_a_stop_string_held_back() -> None:
    it = answer(n_predict=3, stop=("cde",))
    texts, ids, reason = feed(it, list(b"abcdef"))
    assert ("".join(texts), bytes(ids), reason) == ("abc", b"abc", StopReason.LIMIT)
    assert not it.truncated
    assert it.n_remain == 0


def test_half_a_character_at_the_end_becomes_a_replacement_character() -> None:
    texts, ids, _ = feed(answer(n_predict=2), list("a€".encode()))
    assert "".join(texts) == "a\ufffd"
    assert len(ids) == 2


def test_an_end_token_has_no_text_and_wins_over_the_budget() -> None:
    it = answer(n_predict=2)
    texts, ids, reason = feed(it, [97, EOG])
    assert ("".join(texts), ids, reason) == ("a", [97, EOG], StopReason.EOS)


def test_a_stop_string_wins_over_the_budget() -> None:
    assert feed(answer(n_predict=2, stop=("b",)), list(b"ab"))[2] is StopReason.WORD


def test_the_context_is_full_when_prompt_and_answer_reach_it() -> None:
    it = answer(n_prompt=4, n_ctx=10)
    texts, _, reason = feed(it, list(b"abcdefghij"))
    assert ("".join(texts), reason, it.truncated) == ("abcdef", StopReason.LIMIT, True)


def test_new_lines_are_noticed_in_sent_text_only() -> None:
    it = answer(stop=("\n",))
    feed(it, list(b"a\n"))
    assert not it.has_new_line
    it = answer()
    feed(it, list(b"a\n"))
    assert it.has_new_line


def test_a_cut_gives_what_was_held_back_once() -> None:
    it = answer(stop=("abc",))
    feed(it, list(b"xab"))
    text, outputs = it.cut()
    assert (text, [o.id for o in outputs]) == ("ab", list(b"ab"))
    assert it.cut() == ("", ())


@settings(max_examples=200)
@given(
    ids=st.lists(
        st.one_of(st.sampled_from(list("aé€b".encode())), st.integers(0, 256)), min_size=1, max_size=30
    ),
    stop=st.lists(st.text("aé€b", min_size=1, max_size=3), max_size=3).map(tuple),
    n_predict=st.integers(1, 30),
)
def test_streamed_text_is_the_text_of_the_sent_tokens_up_to_the_stop(
    ids: list[int], stop: tuple[str, ...], n_predict: int
) -> None:
    it = answer(n_predict=n_predict, stop=stop)
    texts, sent, reason = feed(it, ids)
    text = "".join(texts) + it.cut()[0]
    whole = bytes(i for i in ids[: it.n_decoded] if i < 256).decode(errors="replace")
    if reason is StopReason.WORD:
        assert whole.startswith(text + it.stopping_word)
        assert not any(word in text for word in stop)
    elif reason is not StopReason.NONE:
        assert text == whole
        assert sent == ids[: it.n_decoded]


@pytest.mark.parametrize("n_predict", [-1, 5])
def test_the_budget_left_is_told(n_predict: int) -> None:
    it = answer(n_predict=n_predict)
    feed(it, [97, 98])
    assert it.n_remain == (-1 if n_predict < 0 else 3)
