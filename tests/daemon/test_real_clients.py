"""The official clients and an agent's conversation with SmolLM2 in a process of its own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.daemon.harness import events
from tests.daemon.process import EmberdProcess
from tests.models import smollm2_path

MESSAGES: Any = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def emberd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmberdProcess]:
    store: Path = tmp_path_factory.mktemp("store")
    flags = ("-np", "2", "-c", "12288", "--store-path", str(store))
    with EmberdProcess(smollm2_path(), *flags) as running:
        yield running


def test_anthropics_client_asks_streams_and_counts(emberd: EmberdProcess) -> None:
    client = anthropic.Anthropic(base_url=emberd.url, api_key="none", max_retries=0)
    greedy: dict[str, Any] = {"model": "any", "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.messages.create(**greedy)
    text = whole.content[0].text
    assert "Paris" in text and whole.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model="any", messages=MESSAGES).input_tokens
    usage = whole.usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    with client.messages.stream(**greedy) as stream:
        assert "".join(stream.text_stream) == text
        final = stream.get_final_message()
    assert final.usage.cache_read_input_tokens == counted - final.usage.input_tokens > 0


def test_openais_client_follows_a_response(emberd: EmberdProcess) -> None:
    client = openai.OpenAI(base_url=f"{emberd.url}/v1", api_key="none", max_retries=0)
    greedy: dict[str, Any] = {"model": "any", "input": MESSAGES, "max_output_tokens": 24, "temperature": 0}
    whole = client.responses.create(**greedy)
    assert "Paris" in whole.output_text
    with client.responses.stream(**greedy) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == "".join(deltas) == whole.output_text


def test_slots_are_listed_with_what_they_remember(emberd: EmberdProcess) -> None:
    emberd.client.post("/completion", json={"prompt": "Mary had a little", "n_predict": 2, "id_slot": 1})
    slot = emberd.client.get("/slots/list").json()[1]
    assert slot["slot_id"] == 1 and slot["prompt"].startswith("Mary had a little")
    assert slot["token_count"] >= 4


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_agents_transcript_is_read_once(emberd: EmberdProcess, path: str) -> None:
    """Twenty turns behind a system prompt of 3,000 tokens: each turn reads what it adds, no more."""
    rules = " ".join(f"Rule {i}: keep file {i} short and tested." for i in range(230))
    system = {"role": "system", "content": f"You are a coding agent for {path}. {rules}"}
    messages: list[dict[str, Any]] = []
    cached = []
    for turn in range(20):
        messages.append({"role": "user", "content": f"Step {turn}: what now?"})
        body: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "stream": True}
        if path == "/v1/messages":
            text = emberd.client.post(
                path, json=body | {"messages": messages, "system": system["content"]}
            ).text
            data = [json.loads(one) for one in events(text)]
            usage = data[0]["message"]["usage"]
            cached.append(usage["cache_read_input_tokens"])
            n_prompt = usage["input_tokens"] + cached[-1]
            pieces = [one["delta"]["text"] for one in data if one["type"] == "content_block_delta"]
        else:
            body["stream_options"] = {"include_usage": True}
            text = emberd.client.post(path, json=body | {"messages": [system, *messages]}).text
            chunks = [json.loads(one) for one in events(text)[:-1]]
            usage = chunks[-1]["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
            n_prompt = usage["prompt_tokens"]
            pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]]
        assert turn == 0 or n_prompt - cached[-1] < 60
        messages.append({"role": "assistant", "content": "".join(pieces)})
    assert n_prompt > 3000
    assert cached == sorted(cached) and len(set(cached[1:])) == 19
