"""DeepSeek V4 over HTTP: texts, chats, an edit in the middle, saves and restarts; llama.cpp's answers."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.process import EmberdProcess
from tests.shared_data import shared


def dsv4(name: str) -> Path:
    return shared(f"models/dsv4/dsv4-tiny-a-f32.{name}")


def start(store: Path) -> EmberdProcess:
    flags = ["-c", "2048", "-np", "2", "-ctk", "f32", "-ctv", "f32", "--store-path", str(store)]
    return EmberdProcess(dsv4("gguf"), *flags)


@pytest.fixture(scope="module")
def emberd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmberdProcess]:
    with start(tmp_path_factory.mktemp("store")) as process:
        yield process


def complete(emberd: EmberdProcess, ids: Any, n_predict: int) -> dict[str, Any]:
    body = {"prompt": [int(token) for token in ids], "n_predict": n_predict, "temperature": 0}
    reply = emberd.client.post("/completion", json={**body, "return_tokens": True})
    return reply.raise_for_status().json()


def test_greedy_answers_to_texts_are_the_reference_s(emberd: EmberdProcess) -> None:
    for case in json.loads(dsv4("text.json").read_text())["cases"]:
        expected = case["greedy_after_bos_plus_tokens"]
        assert complete(emberd, [0, *case["tokens_without_bos"]], 24)["tokens"] == expected


def test_a_chat_is_the_completion_of_what_its_template_makes_of_it(emberd: EmberdProcess) -> None:
    text = "The weather in the city?"
    messages = [{"role": "user", "content": text}]
    prompt = emberd.client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt == f"<｜begin▁of▁sentence｜><｜User｜>{text}<｜Assistant｜></think>"  # noqa: RUF001
    case = next(c for c in json.loads(dsv4("text.json").read_text())["cases"] if text in c["text"])
    body = {"messages": messages, "max_tokens": 24, "temperature": 0}
    reply = emberd.client.post("/v1/chat/completions", json=body).raise_for_status().json()
    expected = bytes.fromhex(case["greedy_bytes_hex"]).decode(errors="replace")
    assert reply["choices"][0]["message"]["content"].strip() == expected.strip()
    assert reply["usage"]["prompt_tokens"] == 1 + len(case["tokens_without_bos"])


def test_after_an_edit_in_the_middle_it_goes_on_from_a_point_with_the_right_tokens(
    emberd: EmberdProcess,
) -> None:
    o = np.load(dsv4("rollback.npz"))
    complete(emberd, o["base"], 1)
    for n in o["points"].tolist():
        answer = complete(emberd, np.concatenate([o["base"][:n], o[f"alt_{n}"]]), 1)
        assert answer["tokens"] == [o[f"logits_{n}"][-1].argmax()]
        assert 0 < answer["timings"]["cache_n"] <= n


def stored(emberd: EmberdProcess) -> bool:
    store = emberd.client.get("/store").raise_for_status().json()
    return store["n_blocks"] >= 2 and store["n_points"] >= 1 and not store["queue_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("saved", [False, True])
def test_a_conversation_goes_on_after_sigkill(saved: bool, tmp_path: Path) -> None:
    o = np.load(dsv4("long.npz"))
    tokens, expected = o["tokens"], o["greedy_tokens"].tolist()
    save = {"filename": "talk"}
    with start(tmp_path) as emberd:
        answer = complete(emberd, tokens, 32)
        assert answer["tokens"] == expected
        if saved:
            path = f"/slots/{answer['id_slot']}?action=save"
            n_saved = emberd.client.post(path, json=save).raise_for_status().json()["n_saved"]
        else:
            deadline = time.monotonic() + 120
            while not stored(emberd):
                assert time.monotonic() < deadline, "it was not stored"
                time.sleep(0.05)
        emberd.process.kill()
    with start(tmp_path) as emberd:
        if saved:
            restored = emberd.client.post("/slots/1?action=restore", json=save).raise_for_status().json()
            assert restored["n_restored"] == n_saved
        answer = complete(emberd, tokens, 32)
        assert answer["tokens"] == expected
        assert answer["timings"]["cache_n"] >= len(tokens) - 1
