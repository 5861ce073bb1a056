"""``/v1/messages`` and its token count."""

import json
from collections.abc import Iterator
from typing import Any, cast

import anthropic
import pytest

from daemon.anthropic_request import steady
from runtime.engine import Failed
from runtime.errors import RuntimeFault
from tests.daemon.fakes import alphabet
from tests.daemon.harness import RunningDaemon, events, tokenizer

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "2", "-c", "4096", "--api-key", "secret") as running:
        running.client.headers["x-api-key"] = "secret"
        yield running


def prompt_text(daemon: RunningDaemon) -> str:
    return tokenizer().decode(daemon.engine.requests[-1].prompt.tolist(), special=True)


def test_an_answer_has_anthropics_shape(daemon: RunningDaemon) -> None:
    body = daemon.post("/v1/messages", {"messages": [USER], "max_tokens": 2, "model": "any"}).json()
    assert body.pop("id").startswith("chatcmpl-")
    n_prompt = body["usage"]["input_tokens"]
    assert n_prompt == len(daemon.engine.requests[-1].prompt)
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "test-model",
        "content": [{"type": "text", "text": " w0 w1"}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {"cache_read_input_tokens": 0, "input_tokens": n_prompt, "output_tokens": 2},
    }


def test_a_stream_has_anthropics_events_in_order(daemon: RunningDaemon) -> None:
    body = {"messages": [USER], "max_tokens": 2, "stream": True}
    text = daemon.post("/v1/messages", body).text
    names = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    data = [json.loads(one) for one in events(text)]
    assert names == [event["type"] for event in data]
    assert names == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert data[0]["message"]["content"] == [] and data[0]["message"]["usage"]["output_tokens"] == 0
    assert data[1] == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert [event["delta"] for event in data[2:4]] == [
        {"type": "text_delta", "text": " w0"},
        {"type": "text_delta", "text": " w1"},
    ]
    assert data[5]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert data[5]["usage"] == {"output_tokens": 2}


def test_an_answer_without_text_has_no_block(daemon: RunningDaemon) -> None:
    daemon.engine.script = lambda request: []
    try:
        assert daemon.post("/v1/messages", {"messages": [USER]}).json()["content"] == []
        data = events(daemon.post("/v1/messages", {"messages": [USER], "stream": True}).text)
        assert [json.loads(one)["type"] for one in data] == ["message_start", "message_delta", "message_stop"]
    finally:
        daemon.engine.script = alphabet


def test_what_is_asked_for_reaches_the_engine(daemon: RunningDaemon) -> None:
    body = {"messages": [USER], "stop_sequences": ["END"], "temperature": 0.25, "top_p": 0.5, "top_k": 3}
    assert daemon.post("/v1/messages", body).status_code == 200
    request = daemon.engine.requests[-1]
    assert (request.n_predict, request.stop) == (4096, ("END",))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 3)


@pytest.mark.parametrize(
    "system", ["Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]]
)
def test_the_system_prompt_is_text_or_blocks(daemon: RunningDaemon, system: Any) -> None:
    daemon.post("/v1/messages", {"messages": [USER], "system": system, "max_tokens": 1})
    assert "system\nBe brief.<" in prompt_text(daemon)


def test_a_checksum_that_changes_with_each_request_does_not_change_the_prompt(daemon: RunningDaemon) -> None:
    header = "x-anthropic-billing-header: cc_version=2.1; cch={}; x=1;\nYou are an agent."
    prompts = []
    for checksum in ("0a1b2", "ffe10"):
        system = [{"type": "text", "text": header.format(checksum)}]
        daemon.post("/v1/messages", {"messages": [USER], "system": system, "max_tokens": 1})
        prompts.append(prompt_text(daemon))
    assert prompts[0] == prompts[1] and "cch=fffff;" in prompts[0]
    assert steady("About cch=12345; in other texts") == "About cch=12345; in other texts"


def test_tool_results_follow_the_users_words(daemon: RunningDaemon) -> None:
    messages = [
        USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "seven"}]},
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    assert daemon.post("/v1/messages", {"messages": messages, "max_tokens": 1}).status_code == 200
    text = prompt_text(daemon)
    assert text.index("user\ngo on") < text.index("tool\nseven")


def test_tokens_are_counted_as_they_are_read(daemon: RunningDaemon) -> None:
    body = {"messages": [USER], "system": "Be brief."}
    counted = daemon.post("/v1/messages/count_tokens", body).json()
    daemon.post("/v1/messages", body | {"max_tokens": 1})
    assert counted == {"input_tokens": len(daemon.engine.requests[-1].prompt)}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "'messages' is required"),
        ({"messages": 5}, 400, "Expected 'messages' to be an array"),
        ({"messages": [5]}, 400, "Expected each message"),
        ({"messages": [{"role": "user", "content": [{"type": "nonsense"}]}]}, 400, "nonsense"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "Missing 'text'"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, "image_url"),
        ({"messages": [USER], "system": 5}, 400, "Field 'system'"),
        ({"messages": [USER], "system": [5]}, 400, "type text"),
        ({"messages": [USER], "tool_choice": "auto"}, 400, "Field 'tool_choice'"),
        ({"messages": [USER], "max_tokens": -5}, 400, "Field 'max_tokens'"),
        ({"messages": [USER], "tools": [{"name": "f", "input_schema": {}}]}, 501, "Field 'tools'"),
        ({"messages": [USER], "thinking": {"type": "enabled", "budget_tokens": 9}}, 501, "Field 'thinking'"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    daemon: RunningDaemon, body: dict[str, Any], status: int, message: str
) -> None:
    assert message in daemon.error("/v1/messages", body, status)
    assert message in daemon.error("/v1/messages/count_tokens", body, status)


def test_neutral_values_of_what_is_missing_pass(daemon: RunningDaemon) -> None:
    body = {
        "messages": [USER],
        "max_tokens": 1,
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "none"},
        "thinking": {"type": "disabled"},
        "metadata": {"user_id": "x"},
    }
    assert daemon.post("/v1/messages", body).status_code == 200


def test_an_error_in_the_middle_of_a_stream_is_an_event_of_its_own(daemon: RunningDaemon) -> None:
    daemon.engine.script = lambda request: [" w"] * 1_000_000
    body = {"messages": [USER], "stream": True}
    try:
        with daemon.client.stream("POST", "/v1/messages", json=body) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: message_start"
            request_id = daemon.engine.requests[-1].request_id
            daemon.engine._deliver([Failed(request_id, RuntimeFault("the step failed"))])
            rest = list(lines)
    finally:
        daemon.engine.script = alphabet
    assert "event: error" in rest
    error = json.loads(rest[rest.index("event: error") + 1].removeprefix("data: "))
    assert error["type"] == "server_error" and "message_stop" not in "".join(rest)


def test_the_official_client_asks_streams_and_counts(daemon: RunningDaemon) -> None:
    client = anthropic.Anthropic(base_url=daemon.url, api_key="secret", max_retries=0)
    messages: Any = [USER]
    answer = client.messages.create(model="any", messages=messages, max_tokens=2, system="Be brief.")
    assert answer.content[0].type == "text" and answer.content[0].text == " w0 w1"
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 2)
    with client.messages.stream(model="any", messages=messages, max_tokens=3) as stream:
        assert "".join(stream.text_stream) == " w0 w1 w2"
        assert stream.get_final_message().usage.output_tokens == 3
    assert client.messages.count_tokens(model="any", messages=messages).input_tokens > 0
    with pytest.raises(anthropic.BadRequestError, match="Field 'temperature'"):
        client.messages.create(model="any", messages=messages, max_tokens=1, temperature=cast(Any, "x"))
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=daemon.url, api_key="wrong", max_retries=0).messages.count_tokens(
            model="any", messages=messages
        )
