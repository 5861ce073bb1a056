"""``/completion`` and ``/v1/completions``: shapes, prompt forms, settings, errors."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.engine import GenerateRequest
from tests.daemon.harness import RunningDaemon, events, tokenizer


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "2", "-c", "512") as running:
        yield running


def last_request(daemon: RunningDaemon) -> GenerateRequest:
    return daemon.engine.requests[-1]


def ids(text: str, *, add_special: bool = True) -> list[int]:
    return tokenizer().encode(text, add_special=add_special, parse_special=True)


def test_an_answer_has_the_fields_of_both_peers(daemon: RunningDaemon) -> None:
    body = daemon.post("/completion", {"prompt": "hello", "n_predict": 3, "seed": 5}).json()
    assert body["content"] == " w0 w1 w2"
    assert body["index"] == 0 and body["stop"] is True and body["tokens"] == []
    assert body["model"] == "test-model"
    assert body["tokens_predicted"] == 3
    assert body["tokens_evaluated"] == len(ids("hello"))
    assert body["tokens_cached"] == len(ids("hello")) + 3
    assert body["prompt"] == "hello"
    assert body["stop_type"] == "limit" and body["stopped_limit"] is True
    assert body["stopped_eos"] is False and body["stopped_word"] is False and body["stopping_word"] == ""
    assert body["truncated"] is False and body["has_new_line"] is False
    assert body["generation_settings"]["seed"] == 5
    assert body["generation_settings"]["n_predict"] == 3
    timings = body["timings"]
    assert timings["predicted_n"] == 3 and timings["cache_n"] == 0
    assert {"cache_source", "cache_reason", "n_ctx", "n_past", "prompt_per_second"} <= timings.keys()


def test_an_answer_that_ends_by_itself_says_eos(daemon: RunningDaemon) -> None:
    body = daemon.post("/completion", {"prompt": "hello"}).json()
    assert body["stop_type"] == "eos" and body["stopped_eos"] is True


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", lambda: [ids("ab")]),
        ([1, 2, 3], lambda: [[1, 2, 3]]),
        (["ab", 3, "cd"], lambda: [[*ids("ab"), 3, *ids("cd", add_special=False)]]),
        ([3, "ab"], lambda: [[3, *ids("ab", add_special=False)]]),
        ({"prompt_string": "ab"}, lambda: [ids("ab")]),
        (["ab", "cd"], lambda: [ids("ab"), ids("cd")]),
        (
            ["ab", [1, 2], {"prompt_string": "x"}, ["b", 3]],
            lambda: [ids("ab"), [1, 2], ids("x"), [*ids("b"), 3]],
        ),
        ([[1], [2]], lambda: [[1], [2]]),
    ],
)
def test_every_shape_of_prompt_becomes_its_tokens(daemon: RunningDaemon, prompt: Any, expected: Any) -> None:
    before = len(daemon.engine.requests)
    body = daemon.post("/completion", {"prompt": prompt, "n_predict": 1}).json()
    sent = [request.prompt.tolist() for request in daemon.engine.requests[before:]]
    assert sent == expected()
    answers = body if isinstance(body, list) else [body]
    assert [answer["index"] for answer in answers] == list(range(len(sent)))
    assert isinstance(body, list) == (len(sent) > 1)


def test_one_prompt_in_an_array_is_answered_by_an_array(daemon: RunningDaemon) -> None:
    assert isinstance(daemon.post("/completion", {"prompt": ["a"], "n_predict": 1}).json(), list)


def test_an_empty_prompt_is_answered(daemon: RunningDaemon) -> None:
    assert daemon.post("/completion", {"prompt": "", "n_predict": 0}).status_code == 200


WRONG: list[tuple[Any, str]] = [
    ({}, "prompt"),
    ([], "Expected object, got array"),
    ({"prompt": []}, '"prompt" must not be empty'),
    ({"prompt": 5}, "elements must be a string"),
    ({"prompt": [True]}, "elements must be a string"),
    ({"prompt": {"x": 1}}, "elements must be a string"),
    ({"prompt": [[1, [2]]]}, "elements must be a string"),
    ({"prompt": [99999999]}, "invalid tokens"),
    ({"prompt": [-1]}, "invalid tokens"),
    ({"prompt": ["a", -1]}, "invalid tokens"),
    ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "Multimodal data provided"),
    ({"prompt": "a", "n_predict": "x"}, "Field 'n_predict': Expected int, got str"),
    ({"prompt": "a", "n_predict": -5}, "Field 'n_predict': Expected int >= -1, but got -5"),
    ({"prompt": "a", "n_predict": 1.5}, "Field 'n_predict'"),
    ({"prompt": "a", "n_predict": 2**40}, "Field 'n_predict'"),
    ({"prompt": "a", "temperature": "x"}, "Field 'temperature'"),
    ({"prompt": "a", "stream": "yes"}, "Field 'stream': Expected bool, got str"),
    ({"prompt": "a", "stop": 5}, "Field 'stop'"),
    ({"prompt": "a", "stop": ["a", 5]}, "Field 'stop[1]'"),
    ({"prompt": "a", "repeat_last_n": -2}, "Field 'repeat_last_n'"),
    ({"prompt": "a", "repeat_penalty": 0}, "Field 'repeat_penalty'"),
    ({"prompt": "a", "n": 3}, "Field 'n': Value must be between 1 <= value <= 2, but got 3"),
    ({"prompt": "a", "n": 0}, "Field 'n'"),
    ({"prompt": "a", "logit_bias": 5}, "Field 'logit_bias'"),
    ({"prompt": "a", "dry_sequence_breakers": []}, "Field 'dry_sequence_breakers'"),
    ({"prompt": "a", "stream_options": {"include_usage": 1}}, "Field 'stream_options.include_usage'"),
    ({"prompt": "a", "seed": "x"}, "Field 'seed'"),
]


@pytest.mark.parametrize(("body", "message"), WRONG, ids=[json.dumps(body)[:50] for body, _ in WRONG])
def test_a_malformed_request_is_answered_400_with_the_field(
    daemon: RunningDaemon, body: Any, message: str
) -> None:
    assert message in daemon.error("/completion", body, 400)


DEEP = b"[" * 900 + b"]" * 900
DEEPER = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "a", "n_predict": NaN}',
        b'{"temperature": 1e999}',
        b'{"n_predict": "x"',
        b'{"n_predict": 1.0, "x": %s}' % DEEP,
        b'{"prompt": "a", "x": %s}' % DEEPER,
    ],
    ids=lambda body: body[:24].decode(errors="replace"),
)
def test_a_body_that_is_not_json_is_answered_400(daemon: RunningDaemon, body: bytes) -> None:
    response = daemon.client.post("/completion", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


UNSUPPORTED: list[dict[str, Any]] = [
    {"dynatemp_range": 0.5},
    {"tfs_z": 0.5},
    {"top_n_sigma": 1.0},
    {"xtc_probability": 0.1},
    {"penalty_prompt": "x"},
    {"dry_multiplier": 0.8},
    {"mirostat": 2},
    {"adaptive_target": 0.5},
    {"grammar": "root ::= x"},
    {"json_schema": {}},
    {"grammar_lazy": True},
    {"n_indent": 4},
    {"t_max_predict_ms": 100},
    {"lora": [{"id": 0, "scale": 1.0}]},
    {"reasoning_budget_tokens": 10},
    {"banned_strings": ["x"]},
    {"banned_regex": ["x"]},
    {"n_cache_reuse": 10},
    {"image_data": [{"data": "", "id": 1}]},
]


@pytest.mark.parametrize("field", UNSUPPORTED, ids=lambda field: next(iter(field)))
def test_a_feature_that_is_missing_is_refused_by_name_and_never_ignored(
    daemon: RunningDaemon, field: dict[str, Any]
) -> None:
    name = next(iter(field))
    assert f"Field '{name}'" in daemon.error("/completion", {"prompt": "a", **field}, 501)
    assert f"Field '{name}'" in daemon.error("/v1/completions", {"prompt": "a", **field}, 501)


def test_neutral_values_of_missing_features_pass(daemon: RunningDaemon) -> None:
    neutral = {
        "dynatemp_range": 0, "tfs_z": 1.0, "top_n_sigma": -1, "xtc_probability": 0.0, "xtc_threshold": 0.1,
        "dry_multiplier": 0, "mirostat": 0, "mirostat_tau": 5.0, "adaptive_target": -1.0, "grammar": "",
        "json_schema": None, "lora": [], "n_indent": 0, "t_max_predict_ms": -1, "banned_strings": [],
        "reasoning_format": "auto", "speculative.n_max": 5, "no_such_field": {"x": 1}, "temperature": None,
    }  # fmt: skip
    assert daemon.post("/completion", {"prompt": "a", "n_predict": 1, **neutral}).status_code == 200


def test_sampling_fields_reach_the_engine_with_soft_limits(daemon: RunningDaemon) -> None:
    daemon.post(
        "/completion",
        {"prompt": "a", "n_predict": 1, "temperature": -1, "top_p": 7, "min_p": -1, "top_k": -5,
         "seed": 2**33 + 7, "repeat_penalty": 1.2, "stop": "END", "ignore_eos": True, "min_keep": 2,
         "id_slot": 3, "cache_prompt": False, "store": False, "typical_p": 0.5},
    )  # fmt: skip
    request = last_request(daemon)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k) == (0.0, 1.0, 0.0, 0)
    assert (sampling.seed, sampling.repeat_penalty, sampling.typical_p) == (7, 1.2, 0.5)
    assert (sampling.ignore_eos, sampling.min_keep) == (True, 2)
    assert (request.stop, request.id_slot) == (("END",), 1)
    assert (request.cache_prompt, request.store) == (False, False)


def test_logit_bias_has_all_its_forms(daemon: RunningDaemon) -> None:
    def sent(bias: Any) -> list[tuple[int, float]]:
        daemon.post("/completion", {"prompt": "a", "n_predict": 1, "logit_bias": bias})
        return list(last_request(daemon).sampling.logit_bias)

    minus_infinity = float("-inf")
    assert sent([[5, 1.5], [6, False]]) == [(5, 1.5), (6, minus_infinity)]
    assert sent({"5": 1, "7": False}) == [(5, 1.0), (7, minus_infinity)]
    assert sent([["ab", -1]]) == [(token, -1.0) for token in ids("ab", add_special=False)]
    assert sent([[10**9, 1], [5], "x", [5, True], [5, "x"], [None, 1], [5, 10**400]]) == []


def test_a_sampler_left_out_of_the_chain_is_off(daemon: RunningDaemon) -> None:
    body = {
        "prompt": "a",
        "n_predict": 1,
        "samplers": ["top_k", "temperature"],
        "temperature": 0.5,
        "top_p": 0.5,
    }
    answer = daemon.post("/completion", body).json()
    sampling = last_request(daemon).sampling
    assert (sampling.top_p, sampling.min_p, sampling.temperature, sampling.top_k) == (1.0, 0.0, 0.5, 40)
    assert answer["generation_settings"]["samplers"] == ["top_k", "temperature"]
    daemon.post("/completion", {"prompt": "a", "n_predict": 1, "samplers": "kt"})
    assert last_request(daemon).sampling.top_p == 1.0


def test_another_order_of_samplers_is_refused(daemon: RunningDaemon) -> None:
    body = {"prompt": "a", "samplers": ["temperature", "top_k"]}
    assert "Field 'samplers'" in daemon.error("/completion", body, 501)


def test_a_prompt_longer_than_the_context_says_by_how_much(daemon: RunningDaemon) -> None:
    response = daemon.post("/completion", {"prompt": [1] * 300, "n_predict": 1})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (300, 256)


def test_response_fields_select_and_flatten(daemon: RunningDaemon) -> None:
    fields = ["content", "generation_settings/seed", "no/such", "timings/predicted_n"]
    body = {"prompt": "a", "n_predict": 1, "seed": 3, "response_fields": fields}
    assert daemon.post("/completion", body).json() == {
        "content": " w0",
        "generation_settings/seed": 3,
        "timings/predicted_n": 1,
    }


def test_tokens_are_returned_on_demand(daemon: RunningDaemon) -> None:
    body = daemon.post("/completion", {"prompt": "a", "n_predict": 2, "return_tokens": True}).json()
    assert body["tokens"] == [65, 66]


def test_probabilities_have_llama_cpps_shape(daemon: RunningDaemon) -> None:
    body = daemon.post("/completion", {"prompt": "a", "n_predict": 1, "n_probs": 2}).json()
    (entry,) = body["completion_probabilities"]
    assert entry["id"] == 65 and entry["logprob"] == -0.5
    assert entry["bytes"] == list(entry["token"].encode())
    assert [candidate["logprob"] for candidate in entry["top_logprobs"]] == [0.0, -1.0]


def test_probabilities_after_sampling_leave_out_what_was_removed(daemon: RunningDaemon) -> None:
    body = {"prompt": "a", "n_predict": 1, "n_probs": 5, "post_sampling_probs": True}
    (entry,) = daemon.post("/completion", body).json()["completion_probabilities"]
    assert entry["prob"] == 0.6
    assert [candidate["prob"] for candidate in entry["top_probs"]] == [1.0, 0.5]


def test_several_completions_of_a_prompt_have_their_own_seeds(daemon: RunningDaemon) -> None:
    answers = daemon.post("/completion", {"prompt": "a", "n_predict": 1, "n_cmpl": 2, "seed": 9}).json()
    assert [answer["index"] for answer in answers] == [0, 1]
    assert [request.sampling.seed for request in daemon.engine.requests[-2:]] == [9, 10]


def test_a_stream_brings_pieces_and_then_the_whole_story(daemon: RunningDaemon) -> None:
    response = daemon.post("/completion", {"prompt": "a", "n_predict": 2, "stream": True, "n_probs": 1})
    assert response.headers["content-type"].startswith("text/event-stream")
    pieces = [json.loads(data) for data in events(response.text)]
    assert [piece["content"] for piece in pieces] == [" w0", " w1", ""]
    assert [piece["stop"] for piece in pieces] == [False, False, True]
    assert [piece["tokens"] for piece in pieces] == [[65], [66], []]
    assert pieces[0]["completion_probabilities"][0]["id"] == 65
    assert pieces[-1]["stop_type"] == "limit" and pieces[-1]["tokens_predicted"] == 2
    assert "[DONE]" not in response.text


def test_a_stream_reports_prompt_progress_on_demand(daemon: RunningDaemon) -> None:
    body = {"prompt": "abc", "n_predict": 1, "stream": True, "return_progress": True}
    pieces = [json.loads(data) for data in events(daemon.post("/completion", body).text)]
    progress = [piece["prompt_progress"] for piece in pieces if "prompt_progress" in piece]
    n = len(ids("abc"))
    assert [(p["total"], p["cache"], p["processed"]) for p in progress] == [(n, 0, 0), (n, 0, n)]


def test_a_stream_carries_timings_per_token_on_demand(daemon: RunningDaemon) -> None:
    body = {"prompt": "a", "n_predict": 2, "stream": True, "timings_per_token": True}
    pieces = [json.loads(data) for data in events(daemon.post("/completion", body).text)]
    assert [piece["timings"]["predicted_n"] for piece in pieces] == [1, 2, 2]


def test_an_error_before_the_first_event_is_an_ordinary_error(daemon: RunningDaemon) -> None:
    response = daemon.post("/completion", {"prompt": [1] * 300, "stream": True})
    assert response.status_code == 400
    assert response.headers["content-type"].startswith("application/json")


def test_openai_text_completions_have_their_shape(daemon: RunningDaemon) -> None:
    body = daemon.post(
        "/v1/completions", {"prompt": "ab", "max_tokens": 2, "logprobs": 1, "model": "x"}
    ).json()
    (choice,) = body["choices"]
    assert body["object"] == "text_completion" and body["id"].startswith("chatcmpl-")
    assert body["system_fingerprint"].startswith("b") and body["model"] == "test-model"
    assert choice["text"] == " w0 w1" and choice["finish_reason"] == "length" and choice["index"] == 0
    assert len(choice["logprobs"]["content"]) == 2
    n = len(ids("ab"))
    assert body["usage"] == {
        "completion_tokens": 2,
        "prompt_tokens": n,
        "total_tokens": n + 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_openai_text_completions_of_several_prompts_are_merged(daemon: RunningDaemon) -> None:
    body = daemon.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 1}).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 2


def test_openai_text_streams_end_with_usage_and_done(daemon: RunningDaemon) -> None:
    data = events(daemon.post("/v1/completions", {"prompt": "a", "stream": True}).text)
    assert data[-1] == "[DONE]"
    pieces = [json.loads(one) for one in data[:-1]]
    assert pieces[-1]["choices"][0] == {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}
    assert pieces[-1]["usage"]["completion_tokens"] == 8
    assert all("usage" not in piece for piece in pieces[:-1])


def test_the_alias_names_of_the_token_budget_have_llama_cpps_precedence(daemon: RunningDaemon) -> None:
    daemon.post("/completion", {"prompt": "a", "max_tokens": 5, "max_completion_tokens": 3})
    assert last_request(daemon).n_predict == 3
    daemon.post("/completion", {"prompt": "a", "max_tokens": 5, "n_predict": 2})
    assert last_request(daemon).n_predict == 2


@pytest.mark.parametrize("field", [{"echo": False}, {"suffix": ""}, {"best_of": 1}, {"best_of": 2, "n": 2}])
def test_what_asks_for_nothing_more_passes(daemon: RunningDaemon, field: dict[str, Any]) -> None:
    assert daemon.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **field}).status_code == 200


def test_whole_numbers_may_be_written_as_floats(daemon: RunningDaemon) -> None:
    body = {"prompt": [1.0, 2], "n_predict": 3.0, "top_k": 5.0, "temperature": 1, "stop": "x"}
    assert daemon.post("/completion", body).json()["tokens_predicted"] == 3
    assert last_request(daemon).prompt.tolist() == [1, 2] and last_request(daemon).sampling.top_k == 5
    for value in (3.5, 1e300, "3", True, [3.0]):
        assert "Field 'n_predict'" in daemon.error("/completion", {"prompt": "a", "n_predict": value}, 400)


def test_a_byte_order_mark_is_no_fault(daemon: RunningDaemon) -> None:
    response = daemon.client.post("/completion", content=b'\xef\xbb\xbf{"prompt": "a", "n_predict": 1}')
    assert response.status_code == 200
