"""What ``/v1/completions`` adds to llama-server's own completions: ``echo``, ``suffix`` and ``best_of``."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.engine import GenerateRequest
from tests.daemon.harness import RunningDaemon, events, tokenizer
from tests.daemon.test_infill import bos, ids, prepare


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "3", "-c", "768") as running:
        running.engine.script = lambda request: [f" s{request.sampling.seed}", " end"]
        # the second seed of three is the likeliest, then the third
        running.engine.logprob = lambda request: {7: -3.0, 8: -1.0, 9: -2.0}.get(request.sampling.seed, -4.0)
        yield running


@pytest.fixture(scope="module")
def filler() -> Iterator[RunningDaemon]:
    """A daemon whose model was trained to fill gaps."""
    with RunningDaemon("-np", "1", "-c", "4096", prepare=prepare) as running:
        yield running


def complete(daemon: RunningDaemon, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = daemon.post("/v1/completions", {"prompt": "ab", **fields}).json()
    return answer


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def last(daemon: RunningDaemon) -> GenerateRequest:
    return daemon.engine.requests[-1]


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [("ab", "ab"), ({"prompt_string": "ab"}, "ab"), (["ab", 3], None), ([5, 6, 7], None)],
)
def test_echo_puts_the_prompt_before_the_answer(
    daemon: RunningDaemon, prompt: Any, shown: str | None
) -> None:
    answer = complete(daemon, prompt=prompt, echo=True, seed=1)
    expected = shown or tokenizer().decode([int(token) for token in last(daemon).prompt], special=True)
    assert texts(answer) == [expected + " s1 end"]


def test_each_of_several_prompts_is_echoed_before_its_own_answers(daemon: RunningDaemon) -> None:
    answer = complete(daemon, prompt=["ab", "cd"], echo=True, n=2, seed=1)
    assert texts(answer) == ["ab s1 end", "ab s2 end", "cd s1 end", "cd s2 end"]


def test_a_stream_begins_with_the_echo(daemon: RunningDaemon) -> None:
    response = daemon.post("/v1/completions", {"prompt": "ab", "echo": True, "seed": 1, "stream": True})
    pieces = [json.loads(one) for one in events(response.text)[:-1]]
    assert [piece["choices"][0]["text"] for piece in pieces] == ["ab", " s1", " end", ""]


def test_without_echo_a_stream_begins_with_the_answer(daemon: RunningDaemon) -> None:
    response = daemon.post("/v1/completions", {"prompt": "ab", "seed": 1, "stream": True})
    assert json.loads(events(response.text)[0])["choices"][0]["text"] == " s1"


def test_probabilities_of_the_prompt_are_refused_by_name(daemon: RunningDaemon) -> None:
    body = {"prompt": "ab", "echo": True, "logprobs": 1}
    assert "Field 'echo'" in daemon.error("/v1/completions", body, 501)


def test_the_best_of_several_is_the_one_with_the_likeliest_tokens(daemon: RunningDaemon) -> None:
    answer = complete(daemon, best_of=3, seed=7)
    assert texts(answer) == [" s8 end"]
    assert answer["choices"][0]["logprobs"] is None
    # what was thrown away was computed too
    assert answer["usage"]["completion_tokens"] == 6


def test_the_best_come_first_and_of_each_prompt_alone(daemon: RunningDaemon) -> None:
    assert texts(complete(daemon, best_of=3, n=2, seed=7)) == [" s8 end", " s9 end"]
    both = complete(daemon, prompt=["ab", "cd"], best_of=3, seed=7, echo=True)
    assert texts(both) == ["ab s8 end", "cd s8 end"]


def test_the_probabilities_asked_for_are_those_of_the_best(daemon: RunningDaemon) -> None:
    answer = complete(daemon, best_of=3, seed=7, logprobs=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [-1.0, -1.0]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_of": 4}, "Value must be between 1 <= value <= 3, but got 4"),
        ({"best_of": 2, "stream": True}, "what is yet to be chosen cannot be streamed"),
        ({"best_of": -1}, "Field 'best_of'"),
        ({"best_of": 2, "prompt": ["a"] * 513}, "more than 1024 completions"),
    ],
)
def test_a_best_of_that_cannot_be_is_a_wrong_request(
    daemon: RunningDaemon, fields: dict[str, Any], message: str
) -> None:
    assert message in daemon.error("/v1/completions", {"prompt": "ab", **fields}, 400)


@pytest.mark.parametrize("best_of", [0, 1, 2])
def test_a_best_of_that_leaves_no_choice_changes_nothing(daemon: RunningDaemon, best_of: int) -> None:
    assert texts(complete(daemon, best_of=best_of, n=2, seed=7)) == [" s7 end", " s8 end"]


def test_a_suffix_makes_the_model_fill_the_gap(filler: RunningDaemon) -> None:
    answer = complete(filler, suffix="cd", max_tokens=2)
    assert texts(answer) == [" w0 w1"]
    assert last(filler).prompt.tolist() == [*bos(), 3, *ids("ab"), 4, *ids("cd"), 5]


def test_texts_around_a_gap_are_not_cut(filler: RunningDaemon) -> None:
    text = "word " * 700
    complete(filler, prompt="ab", suffix=text, max_tokens=1)
    assert len(last(filler).prompt) > len(ids(text))
    told = filler.error("/v1/completions", {"prompt": text * 9, "suffix": "a"}, 400)
    assert "exceeds the available context size" in told


def test_a_suffix_needs_a_text_before_it(filler: RunningDaemon) -> None:
    told = filler.error("/v1/completions", {"prompt": [5, 6], "suffix": "a"}, 400)
    assert told == "Field 'suffix': the prompt must be text"


def test_a_suffix_is_refused_by_a_model_that_was_not_trained_for_it(daemon: RunningDaemon) -> None:
    told = daemon.error("/v1/completions", {"prompt": "a", "suffix": "b"}, 501)
    assert told.startswith("Infill is not supported by this model: prefix token is missing.")
