"""The whole path with SmolLM2 in a process of its own."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.daemon.harness import events, until
from tests.daemon.process import EmberdProcess
from tests.models import smollm2_path

QUESTION = {"role": "user", "content": "Name the capital of France."}
GREEDY: dict[str, Any] = {"temperature": 0, "n_predict": 24}


@pytest.fixture(scope="module")
def emberd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmberdProcess]:
    store = tmp_path_factory.mktemp("store")
    flags = ("-np", "2", "-c", "9216", "--alias", "smollm2", "--store-path", str(store), "--metrics")
    with EmberdProcess(smollm2_path(), *flags) as running:
        yield running


def complete(emberd: EmberdProcess, **body: Any) -> dict[str, Any]:
    response = emberd.client.post("/completion", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def slots_idle(emberd: EmberdProcess) -> int:
    return int(emberd.client.get("/health").json()["slots_idle"])


def test_the_official_client_chats_streams_and_lists_models(emberd: EmberdProcess) -> None:
    client = openai.OpenAI(base_url=f"{emberd.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["smollm2"]
    messages: Any = [QUESTION]
    whole = client.chat.completions.create(model="smollm2", messages=messages, max_tokens=24, temperature=0)
    assert "Paris" in (whole.choices[0].message.content or "")
    stream = client.chat.completions.create(
        model="smollm2", messages=messages, max_tokens=24, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 3


def test_the_same_seed_gives_the_same_bytes_cached_or_not(emberd: EmberdProcess) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 16, "seed": 7}
    first = complete(emberd, **body, cache_prompt=False)
    again = complete(emberd, **body)
    other = complete(emberd, **body | {"seed": 8})
    assert first["content"] == again["content"] != other["content"]
    assert again["timings"]["cache_n"] > 0


def test_a_stop_string_ends_the_answer_and_is_not_shown(emberd: EmberdProcess) -> None:
    plain = complete(emberd, prompt="1, 2, 3, 4,", **GREEDY)["content"]
    word = plain[5:9]
    stopped = complete(emberd, prompt="1, 2, 3, 4,", stop=["never seen", word], **GREEDY)
    assert stopped["content"] == plain[: plain.index(word)]
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    body = {"prompt": "1, 2, 3, 4,", "stop": word, "stream": True, **GREEDY}
    pieces = [json.loads(data) for data in events(emberd.client.post("/completion", json=body).text)]
    assert "".join(piece["content"] for piece in pieces) == stopped["content"]


def test_probabilities_are_of_the_greedy_choice(emberd: EmberdProcess) -> None:
    answer = complete(emberd, prompt="The capital of France is", n_probs=3, **GREEDY | {"n_predict": 2})
    for entry in answer["completion_probabilities"]:
        candidates = [candidate["logprob"] for candidate in entry["top_logprobs"]]
        assert candidates == sorted(candidates, reverse=True) and len(candidates) == 3
        assert entry["logprob"] == candidates[0] <= 0


def test_a_biased_token_wins_and_a_banned_one_never_comes(emberd: EmberdProcess) -> None:
    (token,) = emberd.client.post("/tokenize", json={"content": " Paris"}).json()["tokens"]
    body: dict[str, Any] = {"prompt": "The capital of France is", **GREEDY}
    assert complete(emberd, **body | {"n_predict": 1}, logit_bias=[[token, 100]])["content"] == " Paris"
    banned = complete(emberd, **body, logit_bias=[[token, False]], return_tokens=True)
    assert token not in banned["tokens"]


def test_a_prompt_longer_than_the_context_is_refused_and_harms_nobody(emberd: EmberdProcess) -> None:
    response = emberd.client.post("/completion", json={"prompt": [5] * 5000})
    assert response.status_code == 400
    assert response.json()["error"]["n_prompt_tokens"] == 5000
    assert complete(emberd, prompt="Hello", **GREEDY)["content"]


def test_a_client_that_goes_away_frees_its_slot_within_a_step(emberd: EmberdProcess) -> None:
    host, port = emberd.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "Count: 1, 2, 3", "n_predict": 4000, "ignore_eos": True}).encode()
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: slots_idle(emberd) == 1)
    # 4000 tokens would take longer, and longer still on a slow machine
    until(lambda: slots_idle(emberd) == 2, seconds=20)


def test_four_clients_on_two_slots_all_get_the_answer_they_get_alone(emberd: EmberdProcess) -> None:
    body = {"messages": [QUESTION], "max_tokens": 24, "temperature": 0}
    alone = emberd.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    answers: list[str] = []

    def ask(number: int) -> None:
        prompt = body | {"cache_prompt": number % 2 == 0}
        response = httpx.post(f"{emberd.url}/v1/chat/completions", json=prompt, timeout=120)
        answers.append(response.json()["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [alone] * 4


def test_a_conversation_reads_only_its_new_turn(emberd: EmberdProcess) -> None:
    system = {"role": "system", "content": "You are terse. " * 40}
    messages = [system, QUESTION]
    first = emberd.client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 8}).json()
    answer = first["choices"][0]["message"]
    messages = [*messages, answer, {"role": "user", "content": "And of Italy?"}]
    second = emberd.client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 8}).json()
    n_first = first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= n_first
    assert second["timings"]["cache_source"] == "ram"


def test_prompt_progress_reaches_the_end(emberd: EmberdProcess) -> None:
    body = {"prompt": "word " * 900, "n_predict": 1, "stream": True, "return_progress": True}
    pieces = [json.loads(data) for data in events(emberd.client.post("/completion", json=body).text)]
    progress = [piece["prompt_progress"] for piece in pieces if "prompt_progress" in piece]
    assert progress[0]["processed"] == progress[0]["cache"]
    assert progress[-1]["processed"] == progress[-1]["total"]
    assert [p["processed"] for p in progress] == sorted(p["processed"] for p in progress)


@pytest.mark.slow
def test_health_answers_while_a_long_prompt_is_read(emberd: EmberdProcess) -> None:
    body = {"prompt": "one two three four five six seven eight nine ten " * 400, "n_predict": 1}
    reader = threading.Thread(target=lambda: emberd.client.post("/completion", json=body))
    reader.start()
    waits = []
    with httpx.Client(base_url=emberd.url) as probe:
        until(lambda: probe.get("/health").json()["slots_processing"] == 1)
        while reader.is_alive():
            start = time.perf_counter()
            assert probe.get("/health").status_code == 200
            waits.append(time.perf_counter() - start)
            time.sleep(0.01)
    assert len(waits) > 50
    assert sorted(waits)[int(0.99 * len(waits))] < 0.1


def test_a_second_signal_a_second_later_ends_it_at_once(tmp_path: Path) -> None:
    flags = ("-np", "1", "-c", "4096", "--store-path", str(tmp_path), "--drain-timeout", "60")
    with EmberdProcess(smollm2_path(), *flags) as emberd:
        body = {"prompt": "Count: 1, 2, 3", "ignore_eos": True, "stream": True}
        with emberd.client.stream("POST", "/completion", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            emberd.process.send_signal(signal.SIGINT)
            # close to the first one it is the same wish
            emberd.process.send_signal(signal.SIGTERM)
            until(lambda: any("stopping" in line for line in emberd.log))
            time.sleep(1.1)
            assert emberd.process.poll() is None and next(lines) is not None
            assert emberd.terminate() == 1


def test_a_signal_stops_it_gracefully_and_a_restart_goes_on(tmp_path: Path) -> None:
    flags = ("-np", "1", "-c", "1024", "--store-path", str(tmp_path))
    body = {"prompt": "The quick brown fox jumps over the lazy dog. " * 40, "temperature": 0, "n_predict": 8}
    with EmberdProcess(smollm2_path(), *flags) as emberd:
        cold = complete(emberd, **body)
        assert emberd.terminate() == 0
    with EmberdProcess(smollm2_path(), *flags) as emberd:
        warm = complete(emberd, **body)
        assert emberd.terminate() == 0
    assert warm["content"] == cold["content"]
    assert warm["timings"]["cache_n"] >= warm["tokens_evaluated"] - 2
    assert warm["timings"]["cache_source"] == "store"
