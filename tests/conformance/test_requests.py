"""Requests and the answers that a client of llama-server counts on, a row each."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

CHAT = [{"role": "user", "content": "hi"}]
TIMINGS = ("cache_n prompt_n prompt_ms prompt_per_token_ms prompt_per_second predicted_n predicted_ms "
           "predicted_per_token_ms predicted_per_second")  # fmt: skip
SETTINGS = ("seed temperature top_k top_p min_p typical_p repeat_last_n repeat_penalty presence_penalty "
            "frequency_penalty dry_multiplier mirostat stop max_tokens n_predict n_keep n_discard ignore_eos "
            "stream logit_bias n_probs min_keep grammar samplers timings_per_token lora")  # fmt: skip


@dataclass(frozen=True)
class Row:
    """`keys` are paths that must be in the answer, `values` paths and what stands there."""

    name: str
    request: str
    body: Any = None
    status: int = 200
    keys: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def completion(name: str, keys: str = "", values: dict[str, Any] | None = None, **body: Any) -> Row:
    whole = {"prompt": "One two three", "n_predict": 2, "temperature": 0, **body}
    return Row(name, "POST /completion", whole, 200, keys, values or {})


def refused(
    name: str, request: str, body: Any, status: int = 400, values: dict[str, Any] | None = None
) -> Row:
    return Row(name, request, body, status, "error.message", {"error.code": status} | (values or {}))


ROWS = [
    Row("health", "GET /health", keys="status", values={"status": "ok"}),
    Row("health under v1", "GET /v1/health", values={"status": "ok"}),
    Row("props", "GET /props",
        keys="default_generation_settings.n_ctx default_generation_settings.params total_slots model_alias "
             "model_path modalities.vision chat_template bos_token eos_token build_info is_sleeping"),
    Row("change props", "POST /props", {}, values={"success": True}),
    Row("models", "GET /v1/models",
        keys="data.0.id data.0.created data.0.owned_by data.0.meta.n_vocab data.0.meta.n_ctx_train "
             "data.0.meta.n_embd data.0.meta.n_params data.0.meta.size models.0.name",
        values={"object": "list", "data.0.object": "model"}),
    Row("models without v1", "GET /models", values={"object": "list"}),
    Row("slots", "GET /slots", keys="0.id 0.n_ctx 0.is_processing 0.speculative"),
    Row("tokenize", "POST /tokenize", {"content": "a b"}, keys="tokens.0"),
    Row("tokenize nothing", "POST /tokenize", {}, values={"tokens": []}),
    Row("tokenize with pieces", "POST /tokenize", {"content": "a", "with_pieces": True},
        values={"tokens.0.piece": "a"}),
    Row("tokenize mixed", "POST /tokenize", {"content": [5, "a"]}, values={"tokens.0": 5}),
    Row("detokenize nothing", "POST /detokenize", {}, values={"content": ""}),
    Row("apply a template", "POST /apply-template", {"messages": CHAT}, keys="prompt"),

    completion("completion", "content tokens id_slot model prompt generation_settings has_new_line "
               "truncated stopping_word tokens_cached timings",
               {"stop": True, "index": 0, "tokens_predicted": 2, "stop_type": "limit"}),
    completion("timings", " ".join(f"timings.{key}" for key in TIMINGS.split())),
    completion("generation settings", " ".join(f"generation_settings.{key}" for key in SETTINGS.split())),
    Row("completion by its other name", "POST /completions", {"prompt": "a", "n_predict": 1}, keys="content"),
    completion("no tokens", values={"content": "", "tokens_predicted": 0}, n_predict=0),
    completion("a budget by OpenAI's name", values={"tokens_predicted": 1}, n_predict=None, max_tokens=1),
    completion("null is absent", values={"generation_settings.top_k": 40}, top_k=None),
    completion("unknown fields are ignored", values={"stop": True}, no_such_field={"x": 1}),
    completion("ids as prompt", values={"tokens_evaluated": 3}, prompt=[5, 6, 7]),
    completion("ids and text as prompt", values={"stop": True}, prompt=[5, "a", 6]),
    completion("several prompts", "0.content 1.content", {"0.index": 0, "1.index": 1}, prompt=["a", "b"]),
    completion("tokens on demand", "tokens.1", return_tokens=True),
    completion("probabilities",
               "completion_probabilities.0.id completion_probabilities.0.token "
               "completion_probabilities.0.bytes completion_probabilities.0.logprob "
               "completion_probabilities.1.top_logprobs.2.logprob", n_probs=3),
    completion("probabilities after sampling",
               "completion_probabilities.0.prob completion_probabilities.0.top_probs.0.prob",
               n_probs=3, post_sampling_probs=True),
    completion("only some fields", "content generation_settings/n_predict",
               response_fields=["content", "generation_settings/n_predict"]),
    completion("a stop string", values={"stop_type": "word", "stopping_word": "e"}, n_predict=64,
               prompt="a b c d", stop=["e"]),
    completion("values beyond soft limits are clamped", values={"generation_settings.top_p": 1.0}, top_p=2.0),
    completion("a bias forbids", values={"stop": True}, logit_bias=[[5, False], ["a", -1.5]]),

    refused("no JSON", "POST /completion", b"{"),
    refused("no prompt", "POST /completion", {}),
    refused("an empty list of prompts", "POST /completion", {"prompt": []}),
    refused("a wrong type", "POST /completion", {"prompt": "a", "temperature": "x"}),
    refused("a value beyond its limits", "POST /completion", {"prompt": "a", "n_predict": -5}),
    refused("ids beyond the vocabulary", "POST /completion", {"prompt": [10**6]}),
    refused("a prompt beyond the context", "POST /completion", {"prompt": [5] * 5000},
            values={"error.type": "exceed_context_size_error", "error.n_prompt_tokens": 5000}),
    refused("an unknown path", "GET /no/such/path", None, 404,
            values={"error.type": "not_found_error", "error.message": "File Not Found"}),
    refused("a wrong method", "GET /completion", None, 404),
    refused("chat without messages", "POST /v1/chat/completions", {}),
    refused("a message without content", "POST /v1/chat/completions", {"messages": [{"role": "user"}]}),
    refused("an unknown response format", "POST /v1/chat/completions",
            {"messages": CHAT, "response_format": {"type": "xml"}}),
    refused("top_logprobs alone", "POST /v1/chat/completions", {"messages": CHAT, "top_logprobs": 2}),
    refused("an unknown slot action", "POST /slots/0?action=burn", None),
    refused("a slot that is no number", "POST /slots/x?action=erase", None),
    refused("a file name that is a path", "POST /slots/0?action=save", {"filename": "../x"}),
    refused("embeddings of a model that generates", "POST /v1/embeddings", {"input": "a"}, 501),
    refused("ranking by a model that generates", "POST /rerank", {"query": "a", "documents": ["b"]}, 501),
    refused("a response without input", "POST /v1/responses", {}),
    refused("a response that follows another", "POST /v1/responses",
            {"input": "a", "previous_response_id": "resp_1"}),

    Row("text completion", "POST /v1/completions", {"prompt": "a", "max_tokens": 2, "temperature": 0},
        keys="id created model choices.0.text usage.prompt_tokens timings system_fingerprint "
             "usage.prompt_tokens_details.cached_tokens",
        values={"object": "text_completion", "choices.0.finish_reason": "length",
                "choices.0.logprobs": None, "usage.completion_tokens": 2}),
    Row("text completion with probabilities", "POST /v1/completions",
        {"prompt": "a", "max_tokens": 1, "logprobs": 2}, keys="choices.0.logprobs.content.0.top_logprobs.1"),
    Row("chat", "POST /v1/chat/completions", {"messages": CHAT, "max_tokens": 2, "temperature": 0},
        keys="id created model choices.0.message.content usage.total_tokens timings",
        values={"object": "chat.completion", "choices.0.message.role": "assistant",
                "choices.0.finish_reason": "length", "choices.0.index": 0, "usage.completion_tokens": 2}),
    Row("chat with probabilities", "POST /v1/chat/completions",
        {"messages": CHAT, "max_tokens": 1, "logprobs": True, "top_logprobs": 2},
        keys="choices.0.logprobs.content.0.top_logprobs.1.logprob"),
    Row("several answers", "POST /v1/chat/completions", {"messages": CHAT, "max_tokens": 1, "n": 2},
        values={"choices.1.index": 1}),
    Row("parts of text", "POST /v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 1},
        keys="choices.0.message.content"),
    Row("tokens of a chat", "POST /v1/chat/completions/input_tokens", {"messages": CHAT},
        keys="input_tokens", values={"object": "response.input_tokens"}),
    Row("tokens of a response", "POST /v1/responses/input_tokens", {"input": "hi"},
        keys="input_tokens", values={"object": "response.input_tokens"}),
    Row("tokens of a message", "POST /v1/messages/count_tokens", {"messages": CHAT}, keys="input_tokens"),
    Row("a message", "POST /v1/messages", {"messages": CHAT, "max_tokens": 2},
        keys="id model usage.input_tokens usage.cache_read_input_tokens content.0.text",
        values={"type": "message", "role": "assistant", "stop_reason": "max_tokens",
                "stop_sequence": None, "usage.output_tokens": 2}),
    Row("a response", "POST /v1/responses", {"input": "hi", "max_output_tokens": 2},
        keys="id created_at completed_at model output.0.id usage.input_tokens_details.cached_tokens",
        values={"object": "response", "status": "completed", "output.0.type": "message",
                "output.0.content.0.type": "output_text", "usage.output_tokens": 2}),
    Row("adapters", "GET /lora-adapters", values={"": []}),
    Row("erase a slot", "POST /slots/0?action=erase", keys="n_erased", values={"id_slot": 0}),
]  # fmt: skip


def test_infill_or_why_not(client: httpx.Client) -> None:
    extra = [{"text": "x = 1", "filename": "a.py"}]
    body = {"input_prefix": "def f(", "input_suffix": "): pass", "n_predict": 2, "input_extra": extra}
    response = client.post("/infill", json=body)
    if response.status_code == 501:
        assert "Infill is not supported by this model: " in response.json()["error"]["message"]
        return
    assert response.status_code == 200 and response.json()["stop"] is True
    assert client.post("/infill", json={"input_suffix": "a"}).status_code == 400


def at(answer: Any, path: str) -> Any:
    for key in path.split("."):
        if key:
            answer = answer[int(key)] if isinstance(answer, list) else answer[key]
    return answer


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_request(client: httpx.Client, row: Row) -> None:
    method, path = row.request.split(" ")
    content = row.body if isinstance(row.body, bytes) or row.body is None else json.dumps(row.body).encode()
    response = client.request(method, path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == row.status, response.text
    answer = response.json()
    for path in row.keys.split():
        at(answer, path)
    assert {path: at(answer, path) for path in row.values} == row.values
