"""``/v1/responses``, and counting the tokens of a request."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.daemon.harness import RunningDaemon, events, tokenizer


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "2", "-c", "4096") as running:
        yield running


def prompt_text(daemon: RunningDaemon) -> str:
    return tokenizer().decode(daemon.engine.requests[-1].prompt.tolist(), special=True)


def test_a_response_has_openais_shape(daemon: RunningDaemon) -> None:
    for path in ("/v1/responses", "/responses"):
        body = daemon.post(path, {"input": "hi", "max_output_tokens": 2}).json()
        assert body["id"].startswith("resp_") and body["object"] == "response"
        assert body["status"] == "completed" and body["model"] == "test-model"
        assert body["created_at"] <= body["completed_at"]
        (item,) = body["output"]
        assert item.pop("id").startswith("msg_")
        part = {"type": "output_text", "text": " w0 w1", "annotations": [], "logprobs": []}
        assert item == {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        usage = body["usage"]
        assert usage["output_tokens"] == 2 and usage["input_tokens_details"] == {"cached_tokens": 0}
        assert usage["total_tokens"] == usage["input_tokens"] + 2


def test_a_stream_has_the_responses_events_in_order(daemon: RunningDaemon) -> None:
    body = {"input": "hi", "max_output_tokens": 2, "stream": True}
    text = daemon.post("/v1/responses", body).text
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    data = [json.loads(one) for one in events(text)]
    assert names == [event["type"] for event in data] == [
        "response.created", "response.in_progress",
        "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    assert data[-1]["response"]["output"][0]["content"][0]["text"] == " w0 w1" == data[6]["text"]
    assert [event["sequence_number"] for event in data] == list(range(len(data)))
    assert "timings" in data[-1]


def test_progress_repeats_the_state(daemon: RunningDaemon) -> None:
    body = {"input": "hi", "max_output_tokens": 1, "stream": True, "return_progress": True}
    data = [json.loads(one) for one in events(daemon.post("/v1/responses", body).text)]
    progress = [event for event in data if "prompt_progress" in event]
    assert len(progress) == 2 and {event["type"] for event in progress} == {"response.in_progress"}


def test_all_kinds_of_items_reach_the_template(daemon: RunningDaemon) -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"type": "message", "role": "user", "content": "Weather?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "output_text", "text": "sun"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sun."}]},
        {"role": "user", "content": "Thanks"},
    ]
    body = {"input": items, "instructions": "Be brief.", "max_output_tokens": 1}
    assert daemon.post("/v1/responses", body).status_code == 200
    text = prompt_text(daemon)
    parts = ["system\nBe brief.", "system\nBe kind.", "user\nWeather?", "tool\nsun", "assistant\nSun.",
             "user\nThanks"]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_consecutive_items_of_the_assistant_are_one_message(daemon: RunningDaemon) -> None:
    answer = [{"type": "output_text", "text": "a"}]
    items = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": answer},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "more"},
    ]
    daemon.post("/v1/responses", {"input": items, "max_output_tokens": 1})
    assert prompt_text(daemon).count("<|im_start|>assistant\n") == 2
    assert "assistant\na\nb<" in prompt_text(daemon)


def test_a_probe_without_input_is_answered(daemon: RunningDaemon) -> None:
    probes: list[Any] = ["", []]
    for empty in probes:
        body = daemon.post("/v1/responses", {"input": empty, "max_output_tokens": 1}).json()
        assert body["id"] and body["output"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "'input' is required"),
        ({"input": 5}, 400, "'input' must be"),
        ({"input": [5]}, 400, "object"),
        ({"input": [{"type": "nonsense"}]}, 400, "Cannot determine type of 'item'"),
        ({"input": [{"role": "user", "content": 5}]}, 400, "'content' must be"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, 400, "input_text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "image_url"),
        ({"input": "a", "previous_response_id": "resp_1"}, 400, "previous_response_id"),
        ({"input": "a", "max_output_tokens": "x"}, 400, "Field 'max_output_tokens'"),
        ({"input": "a", "tools": [{"type": "function", "name": "f"}]}, 501, "Field 'tools'"),
        ({"input": "a", "text": {"format": {"type": "json_object"}}}, 501, "Field 'text.format'"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    daemon: RunningDaemon, body: dict[str, Any], status: int, message: str
) -> None:
    assert message in daemon.error("/v1/responses", body, status)
    assert message in daemon.error("/v1/responses/input_tokens", body, status)


def test_tools_of_openais_servers_are_left_out(daemon: RunningDaemon) -> None:
    body = {"input": "a", "max_output_tokens": 1, "tools": [{"type": "web_search"}, {"type": "custom"}]}
    assert daemon.post("/v1/responses", body).status_code == 200


def test_tokens_are_counted_as_they_are_read(daemon: RunningDaemon) -> None:
    daemon.post("/v1/responses", {"input": "hi", "max_output_tokens": 1})
    expected = {"input_tokens": len(daemon.engine.requests[-1].prompt), "object": "response.input_tokens"}
    for prefix in ("", "/v1"):
        assert daemon.post(f"{prefix}/responses/input_tokens", {"input": "hi"}).json() == expected
        messages = [{"role": "user", "content": "hi"}]
        counted = daemon.post(f"{prefix}/chat/completions/input_tokens", {"messages": messages})
        assert counted.json() == expected


def test_the_official_client_asks_and_follows_a_stream(daemon: RunningDaemon) -> None:
    client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0)
    answer = client.responses.create(model="any", input="hi", max_output_tokens=2)
    assert answer.output_text == " w0 w1"
    assert answer.usage is not None and answer.usage.output_tokens == 2
    stream = client.responses.create(model="any", input="hi", max_output_tokens=3, stream=True)
    deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == " w0 w1 w2"
    with client.responses.stream(model="any", input="hi", max_output_tokens=2) as helper:
        assert helper.get_final_response().output_text == " w0 w1"
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="any", input="hi", previous_response_id="resp_1")


@pytest.mark.parametrize("empty", ["", []])
def test_codexs_probe_of_a_server_is_answered(daemon: RunningDaemon, empty: Any) -> None:
    response = daemon.post("/v1/responses", {"model": "any", "input": empty, "max_output_tokens": 1})
    assert response.status_code == 200
    assert {"id", "output"} <= response.json().keys()


def test_tools_that_only_openais_servers_run_are_ignored(daemon: RunningDaemon) -> None:
    tools = [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}, {"type": "local_shell"}]
    assert daemon.post("/v1/responses", {"input": "a", "tools": tools}).status_code == 200
    function = {"type": "function", "name": "f", "parameters": {}}
    assert "Field 'tools'" in daemon.error("/v1/responses", {"input": "a", "tools": [*tools, function]}, 501)
