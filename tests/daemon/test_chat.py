"""``/v1/chat/completions`` and ``/apply-template``."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from daemon.chat import find_delimiters
from daemon.templates import CHATML, ChatTemplate
from tests.daemon.harness import RunningDaemon, events, tokenizer

USER = {"role": "user", "content": "hi"}
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "2", "-c", "2048") as running:
        yield running


def applied(daemon: RunningDaemon, **body: Any) -> str:
    response = daemon.post("/apply-template", body)
    assert response.status_code == 200, response.text
    return str(response.json()["prompt"])


def test_an_answer_has_openais_shape(daemon: RunningDaemon) -> None:
    body = daemon.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 2}).json()
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "finish_reason": "length",
            "index": 0,
            "message": {"role": "assistant", "content": " w0 w1"},
        }
    ]
    assert body["usage"]["completion_tokens"] == 2
    assert body["timings"]["predicted_n"] == 2
    assert tokenizer().decode(daemon.engine.requests[-1].prompt.tolist(), special=True).endswith(PROMPT)


def test_a_stream_begins_with_the_role_and_ends_with_done(daemon: RunningDaemon) -> None:
    body = {"messages": [USER], "max_tokens": 2, "stream": True}
    data = events(daemon.post("/v1/chat/completions", body).text)
    assert data[-1] == "[DONE]"
    chunks = [json.loads(one) for one in data[:-1]]
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": None},
        {"content": " w0"},
        {"content": " w1"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert "timings" in chunks[-1] and all("usage" not in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_usage_comes_in_a_chunk_of_its_own_on_demand(daemon: RunningDaemon) -> None:
    body = {"messages": [USER], "max_tokens": 1, "stream": True, "stream_options": {"include_usage": True}}
    chunks = [json.loads(one) for one in events(daemon.post("/v1/chat/completions", body).text)[:-1]]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 1
    assert "timings" in chunks[-1] and "timings" not in chunks[-2]


def test_logprobs_are_attached_to_their_delta(daemon: RunningDaemon) -> None:
    body = {"messages": [USER], "max_tokens": 1, "logprobs": True, "top_logprobs": 3}
    choice = daemon.post("/v1/chat/completions", body).json()["choices"][0]
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 3
    chunks = [
        json.loads(one)
        for one in events(daemon.post("/v1/chat/completions", body | {"stream": True}).text)[:-1]
    ]
    assert [len(c["choices"][0].get("logprobs", {}).get("content", [])) for c in chunks] == [0, 1, 0]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "'messages' is required"),
    ({"messages": 5}, "Expected 'messages' to be an array"),
    ({"messages": [5]}, "Expected each message to be an object"),
    ({"messages": [{"content": "x"}]}, "Missing 'role'"),
    ({"messages": [{"role": "user"}]}, "must contain 'content'"),
    ({"messages": [{"role": "assistant"}]}, "either 'content' or 'tool_calls'"),
    ({"messages": [{"role": "user", "content": 5}]}, "string or an array"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "Missing 'text'"),
    ({"messages": [{"role": "user", "content": [{"type": "nonsense"}]}]}, "unsupported content[].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "image_url",
    ),
    ({"messages": [USER], "tool_choice": "sometimes"}, "Invalid tool_choice"),
    ({"messages": [USER], "response_format": {"type": "xml"}}, "response_format type must be one of"),
    ({"messages": [USER], "top_logprobs": 3}, "top_logprobs requires logprobs"),
    ({"messages": [USER], "chat_template_kwargs": {"enable_thinking": "x"}}, "enable_thinking"),
    ({"messages": [USER], "chat_template_kwargs": 5}, "Field 'chat_template_kwargs'"),
    ({"messages": [USER], "max_tokens": "x"}, "Field 'max_tokens'"),
    ({"messages": [USER], "logprobs": 3}, "Field 'logprobs'"),
    ({"messages": [USER], "n": 5}, "Field 'n'"),
    (
        {"messages": [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]},
        "2 or more",
    ),
    ({"messages": [USER], "continue_final_message": True}, "continue_final_message"),
    ({"messages": [USER], "continue_final_message": True, "add_generation_prompt": True}, "Cannot set both"),
]


@pytest.mark.parametrize(("body", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_malformed_chat_is_answered_400(daemon: RunningDaemon, body: dict[str, Any], message: str) -> None:
    assert message in daemon.error("/v1/chat/completions", body, 400)
    assert message in daemon.error("/apply-template", body, 400)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.mark.parametrize(
    ("field", "value"),
    [("tools", TOOLS), ("response_format", {"type": "json_object"}), ("json_schema", {}),
     ("grammar", "root ::= x"), ("thinking_budget_tokens", 5), ("reasoning_format", "deepseek"),
     ("reasoning_control", True)],
)  # fmt: skip
def test_output_control_is_refused_by_name(daemon: RunningDaemon, field: str, value: Any) -> None:
    body = {"messages": [USER], field: value}
    assert f"Field '{field}'" in daemon.error("/v1/chat/completions", body, 501)


def test_tools_that_must_not_be_called_pass(daemon: RunningDaemon) -> None:
    body = {"messages": [USER], "max_tokens": 1, "tools": TOOLS, "tool_choice": "none"}
    assert daemon.post("/v1/chat/completions", body).status_code == 200


def test_text_parts_become_one_text(daemon: RunningDaemon) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<" in applied(daemon, messages=[{"role": "user", "content": parts}])


def test_the_developers_word_is_the_systems(daemon: RunningDaemon) -> None:
    text = applied(daemon, messages=[{"role": "developer", "content": "Be brief."}, USER])
    assert text.startswith("<|im_start|>system\nBe brief.")


def test_a_final_answer_is_continued(daemon: RunningDaemon) -> None:
    messages = [USER, {"role": "assistant", "content": "well,"}]
    assert applied(daemon, messages=messages) == PROMPT + "well,"
    assert applied(daemon, messages=messages, continue_final_message=True) == PROMPT + "well,"
    whole = applied(daemon, messages=messages, continue_final_message=False, add_generation_prompt=False)
    assert whole.endswith("well,<|im_end|>\n")


def test_a_continued_answer_is_repeated_only_with_echo(daemon: RunningDaemon) -> None:
    body = {"messages": [USER, {"role": "assistant", "content": "well,"}], "max_tokens": 1}

    def content(**more: Any) -> str:
        answer = daemon.post("/v1/chat/completions", body | more).json()
        return str(answer["choices"][0]["message"]["content"])

    assert content() == " w0"
    assert content(echo=True) == "well, w0"


def test_without_prefill_a_final_answer_is_closed() -> None:
    with RunningDaemon("--no-prefill-assistant") as daemon:
        messages = [USER, {"role": "assistant", "content": "well,"}]
        assert applied(daemon, messages=messages).endswith("well,<|im_end|>\n<|im_start|>assistant\n")


def test_template_variables_come_from_flags_and_requests() -> None:
    template = "{{ color }}|{{ enable_thinking }}|{{ reasoning_effort }}|{{ messages[0].content }}"
    flags = ("--chat-template-kwargs", '{"color": "red"}', "--reasoning", "off", "--chat-template", template)
    with RunningDaemon(*flags) as daemon:
        assert applied(daemon, messages=[USER]) == "red|False||hi"
        body: dict[str, Any] = {
            "chat_template_kwargs": {"color": "blue", "messages": [], "self": 1, "template": 2},
            "reasoning_effort": "low",
        }
        assert applied(daemon, messages=[USER], **body) == "blue|False|low|hi"


def test_a_template_that_drops_the_system_role_gets_it_with_the_users_words() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    )
    with RunningDaemon("--chat-template", template) as daemon:
        text = applied(daemon, messages=[{"role": "system", "content": "Be brief."}, USER])
        assert text == "[user] Be brief.\nhi\n"


def test_turn_starts_are_where_messages_begin() -> None:
    codec = tokenizer()
    # the test vocabulary has no <|im_start|>, so a control token stands for it
    bos = codec.token_text(codec.bos_id or 0)
    template = ChatTemplate(CHATML.replace("<|im_start|>", bos))
    delimiters = find_delimiters(template, codec)
    messages = [USER, {"role": "assistant", "content": "yes"}, USER]
    text = template.render(messages, add_generation_prompt=True, variables={})
    tokens = codec.encode(text, parse_special=True)
    starts = [i for i, token in enumerate(tokens) if token == codec.bos_id]
    assert delimiters.positions(np.array(tokens, dtype=np.int32)) == tuple(starts[1:])


def test_the_official_client_chats_streams_and_lists_models(daemon: RunningDaemon) -> None:
    client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["test-model"]
    messages: Any = [USER]
    answer = client.chat.completions.create(model="any", messages=messages, max_tokens=2)
    assert answer.choices[0].message.content == " w0 w1"
    assert answer.usage is not None and answer.usage.completion_tokens == 2
    stream = client.chat.completions.create(model="any", messages=messages, max_tokens=3, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == " w0 w1 w2"
    text = client.completions.create(model="any", prompt="a", max_tokens=1)
    assert text.choices[0].text == " w0"
    with pytest.raises(openai.BadRequestError, match="Field 'max_tokens'"):
        client.chat.completions.create(model="any", messages=messages, max_tokens=-7)


def test_official_clients_do_not_ask_again_for_what_is_not_there(daemon: RunningDaemon) -> None:
    asked: list[httpx.Request] = []
    with httpx.Client(event_hooks={"request": [asked.append]}) as http:
        client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=2, http_client=http)
        wanted: Any = {"messages": [USER], "response_format": {"type": "json_object"}}
        with pytest.raises(openai.InternalServerError, match="response_format"):
            client.chat.completions.create(model="any", **wanted)
    assert len(asked) == 1
