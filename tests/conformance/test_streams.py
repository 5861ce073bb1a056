"""Streams: which events come in which order, and that they say what the whole answer says."""

import json
from typing import Any

import httpx
import pytest

CHAT = [{"role": "user", "content": "Count to three."}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


def stream(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of each event; ``[DONE]`` as text."""
    response = client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return ["[DONE]" if one == "[DONE]" else json.loads(one) for one in data]


def whole(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_native_pieces_are_the_answer_and_the_last_one_describes_it(client: httpx.Client) -> None:
    body = {"prompt": "One two three", "n_predict": 8, "temperature": 0}
    pieces = stream(client, "/completion", body)
    assert "".join(piece["content"] for piece in pieces) == whole(client, "/completion", body)["content"]
    assert [piece["stop"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1]["content"] == "" and pieces[-1]["tokens"] == [] and "timings" in pieces[-1]
    assert all(len(piece["tokens"]) == 1 for piece in pieces[:-1] if piece["content"])


def test_text_chunks_end_with_usage_and_done(client: httpx.Client) -> None:
    body = {"prompt": "One two three", **GREEDY}
    chunks = stream(client, "/v1/completions", body)
    assert chunks.pop() == "[DONE]"
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == whole(client, "/v1/completions", body)["choices"][0]["text"]
    assert chunks[-1]["usage"]["completion_tokens"] == 8 and "timings" in chunks[-1]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]


def test_chat_chunks_begin_with_the_role(client: httpx.Client) -> None:
    body = {"messages": CHAT, **GREEDY}
    chunks = stream(client, "/v1/chat/completions", body)
    assert chunks.pop() == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == whole(client, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_chat_usage_has_a_chunk_of_its_own(client: httpx.Client) -> None:
    body = {"messages": CHAT, **GREEDY, "stream_options": {"include_usage": True}}
    chunks = stream(client, "/v1/chat/completions", body)
    assert chunks[-2]["choices"] == [] and chunks[-2]["usage"]["completion_tokens"] == 8


def test_progress_goes_from_the_cached_to_all(client: httpx.Client) -> None:
    body = {"prompt": "word " * 200, "n_predict": 1, "return_progress": True, "cache_prompt": False}
    pieces = stream(client, "/completion", body)
    progress = [piece["prompt_progress"] for piece in pieces if "prompt_progress" in piece]
    assert progress[0]["processed"] == progress[0]["cache"]
    assert progress[-1]["processed"] == progress[-1]["total"]


def test_messages_events_are_anthropics(client: httpx.Client) -> None:
    body = {"messages": CHAT, **GREEDY}
    events = stream(client, "/v1/messages", body)
    types = [event["type"] for event in events]
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(types[2:-3]) == {"content_block_delta"}
    text = "".join(event["delta"]["text"] for event in events[2:-3])
    assert text == whole(client, "/v1/messages", body)["content"][0]["text"]
    assert events[-2]["delta"]["stop_reason"] == "max_tokens" and events[-2]["usage"]["output_tokens"] == 8


def test_responses_events_are_openais(client: httpx.Client) -> None:
    body = {"input": CHAT, "max_output_tokens": 8, "temperature": 0}
    events = stream(client, "/v1/responses", body)
    types = [event["type"].removeprefix("response.") for event in events]
    assert types[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert types[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    text = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    answer = whole(client, "/v1/responses", body)
    assert text == answer["output"][0]["content"][0]["text"] == events[-4]["text"]


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_an_error_before_the_first_event_is_an_ordinary_answer(client: httpx.Client, path: str) -> None:
    response = client.post(path, json={"prompt": [5] * 5000, "stream": True})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "exceed_context_size_error"


def test_a_repeated_prompt_is_not_read_again(client: httpx.Client) -> None:
    body = {"prompt": "The quick brown fox jumps over the lazy dog. " * 10, "n_predict": 1, "id_slot": 0}
    first = whole(client, "/completion", body)
    again = whole(client, "/completion", body)
    assert again["timings"]["cache_n"] >= first["tokens_evaluated"] - 1


def test_metrics_are_prometheus_text(client: httpx.Client) -> None:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    for name in ("prompt_tokens_total", "tokens_predicted_total", "requests_processing"):
        assert f"# TYPE llamacpp:{name} " in response.text


def test_any_origin_may_ask_and_a_preflight_is_answered(client: httpx.Client) -> None:
    response = client.options("/completion", headers={"Origin": "https://a.example"})
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] in ("https://a.example", "*")
