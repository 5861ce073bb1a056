"""What the API says of itself, who may ask, and what it has no use for."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.errors import ApiError
from daemon.flags import UsageError
from daemon.hosts import AllowedHosts
from daemon.openapi import BODIES
from daemon.system_prompt import SystemPrompt, parse_system_prompt, read_system_prompt
from tests.daemon.harness import RunningDaemon, tokenizer
from webui import STATIC

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "2", "-c", "1024", "--props") as running:
        yield running


def test_the_version_is_the_one_ik_llama_cpps_page_asks_for(daemon: RunningDaemon) -> None:
    features = {"sql": False, "zstd_compression": False}
    assert daemon.client.get("/version").json() == {"version": 4, "features": features}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/models", 501),
        ("DELETE", "/models", 501),
        ("POST", "/models/load", 501),
        ("POST", "/models/unload", 501),
        ("GET", "/models/sse", 501),
        ("POST", "/v1/audio/transcriptions", 501),
        ("POST", "/audio/transcriptions", 501),
        ("POST", "/v1/systemone", 501),
        ("GET", "/v1/stream", 501),
        ("DELETE", "/v1/stream", 501),
        ("POST", "/v1/streams/lookup", 501),
        ("POST", "/predict", 501),
        ("POST", "/control-vectors/load", 501),
        ("POST", "/control-vectors/unload", 501),
        ("POST", "/control-vectors/apply", 501),
        ("GET", "/tools", 403),
        ("POST", "/tools", 403),
        ("GET", "/cors-proxy", 403),
        ("POST", "/cors-proxy", 403),
    ],
)
def test_what_is_out_of_scope_says_why(daemon: RunningDaemon, method: str, path: str, status: int) -> None:
    response = daemon.client.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["type"] == {501: "not_supported_error", 403: "feature_disabled"}[status]
    assert len(error["message"]) > 10


def test_there_are_no_adapters(daemon: RunningDaemon) -> None:
    assert daemon.client.get("/lora-adapters").json() == []
    assert daemon.client.get("/control-vectors").json() == []
    assert daemon.post("/lora-adapters", []).json() == {"success": True}
    assert "must be an array" in daemon.error("/lora-adapters", {}, 400)
    assert "adapters" in daemon.error("/lora-adapters", [{"id": 0, "scale": 1.0}], 501)


def test_reasoning_cannot_be_ended_from_outside(daemon: RunningDaemon) -> None:
    path = "/v1/chat/completions/control"
    assert daemon.post(path, {"id": "x", "action": "reasoning_end"}).json()["success"] is False
    assert "missing completion id" in daemon.error(path, {"action": "reasoning_end"}, 400)
    assert "unknown control action" in daemon.error(path, {"id": "x", "action": "y"}, 400)


def test_the_document_names_every_route_and_refers_to_nothing_that_it_lacks(daemon: RunningDaemon) -> None:
    document = daemon.client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    posts = {path for path, operations in document["paths"].items() if "post" in operations}
    assert {re.sub(r"<(.+)>", r"{\1}", path) for path in BODIES} <= posts
    assert "/slots/{id_slot}" in posts and "/health" in document["paths"]
    schemas = document["components"]["schemas"]
    references = re.findall(r"#/components/schemas/(\w+)", str(document))
    assert set(references) <= schemas.keys()
    properties = schemas["CompletionRequest"]["properties"]
    assert {"n_predict", "temperature", "prompt", "stop"} <= properties.keys()


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("localhost", True),
        ("localhost:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("192.168.1.5", True),
        ("x", True),
        ("app.localhost", True),
        ("", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8080", False),
        ("[::1", False),
    ],
)
def test_only_names_that_a_page_cannot_own_are_answered(header: str, allowed: bool) -> None:
    assert AllowedHosts(("127.0.0.1",), ("",)).allows(header) is allowed


def test_configured_names_are_answered() -> None:
    assert AllowedHosts(("llm.example.org",), ()).allows("LLM.example.org:80")
    assert AllowedHosts(("127.0.0.1",), (" llm.example.org",)).allows("llm.example.org.")
    assert AllowedHosts(("0.0.0.0",), ()).allows("anything.example")
    assert not AllowedHosts(("0.0.0.0",), ("llm.example.org",)).allows("anything.example")
    assert AllowedHosts(("127.0.0.1",), ("*",)).allows("anything.example")


def test_a_foreign_name_gets_403_that_says_what_to_do(daemon: RunningDaemon) -> None:
    response = daemon.client.get("/health", headers={"Host": "evil.example"})
    assert response.status_code == 403
    assert "--allowed-hosts" in response.json()["error"]["message"]
    with RunningDaemon("--allowed-hosts", "llm.example") as other:
        assert other.client.get("/health", headers={"Host": "llm.example:1"}).status_code == 200


def test_the_prefix_without_its_slash_leads_to_the_page() -> None:
    with RunningDaemon("--api-prefix", "/llm", wait=False) as daemon:
        response = daemon.client.get("/llm")
        assert (response.status_code, response.headers["location"]) == (308, "/llm/")
        assert daemon.client.get("/llm", follow_redirects=True).status_code == 200
        assert daemon.client.get("/llmx").status_code in (404, 503)


def test_a_request_has_a_deadline() -> None:
    with RunningDaemon("--request-timeout", "1") as daemon:
        daemon.engine.gate.clear()
        start = time.monotonic()
        assert "--request-timeout" in daemon.error("/completion", {"prompt": "a"}, 504)
        assert time.monotonic() - start > 0.9
        assert daemon.engine.cancelled
        daemon.engine.gate.set()


def last_prompt(daemon: RunningDaemon) -> str:
    return tokenizer().decode(daemon.engine.requests[-1].prompt.tolist(), special=True)


def test_a_system_prompt_stands_before_every_prompt(tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_text("Once. ")
    with RunningDaemon("-spf", str(file)) as daemon:
        assert daemon.client.get("/props").json()["system_prompt"] == "Once. "
        daemon.post("/completion", {"prompt": "a"})
        assert last_prompt(daemon) == "Once. a"
        assert daemon.engine.requests[-1].prompt.tolist().count(tokenizer().bos_id) <= 1
        daemon.post("/v1/chat/completions", {"messages": [USER]})
        assert last_prompt(daemon).startswith("Once. <|im_start|>user\nhi")
        counted = daemon.post("/v1/messages/count_tokens", {"messages": [USER]}).json()["input_tokens"]
        assert counted == len(daemon.engine.requests[-1].prompt)


def test_a_request_can_change_it_for_all(tmp_path: Path) -> None:
    with RunningDaemon("--props") as daemon:
        system = {"prompt": "A dialog. ", "anti_prompt": "User:", "assistant_name": "Bot:"}
        daemon.post("/completion", {"prompt": "a", "system_prompt": system})
        assert last_prompt(daemon) == "A dialog. a" and daemon.engine.requests[-1].stop == ("User:",)
        daemon.post("/completion", {"prompt": "b"})
        assert last_prompt(daemon) == "A dialog. b"
        props = daemon.client.get("/props").json()
        assert (props["user_name"], props["assistant_name"]) == ("User:", "Bot:")
        assert daemon.post("/props", {"system_prompt": {"prompt": ""}}).json() == {"success": True}
        daemon.post("/completion", {"prompt": "c", "system_prompt": ""})
        assert last_prompt(daemon) == "c"
        assert "Field 'system_prompt'" in daemon.error(
            "/completion", {"prompt": "a", "system_prompt": 5}, 400
        )


def test_a_system_prompt_is_text_or_an_object(tmp_path: Path) -> None:
    file = tmp_path / "system"
    file.write_text('{"prompt": "x", "anti_prompt": "y"}')
    assert read_system_prompt(str(file)) == SystemPrompt("x", "y")
    file.write_text("{not JSON}")
    assert read_system_prompt(str(file)) == SystemPrompt("{not JSON}")
    file.write_text('{"prompt": 5}')
    with pytest.raises(UsageError, match="--system-prompt-file"):
        read_system_prompt(str(file))
    with pytest.raises(UsageError, match="--system-prompt-file"):
        read_system_prompt(str(tmp_path / "absent"))
    with pytest.raises(ApiError, match="system_prompt"):
        parse_system_prompt([1])


def test_props_change_only_where_that_is_allowed() -> None:
    with RunningDaemon() as daemon:
        assert "--props" in daemon.error("/props", {"system_prompt": "x"}, 501)


def test_slots_are_listed(daemon: RunningDaemon) -> None:
    shown = daemon.client.get("/slots/list").json()
    assert [set(slot) for slot in shown] == [{"slot_id", "token_count", "prompt"}] * 2


@pytest.mark.parametrize("own_page", [False, True])
def test_the_completion_module_is_served_with_any_page(tmp_path: Path, own_page: bool) -> None:
    flags: tuple[Any, ...] = ("--path", str(tmp_path)) if own_page else ()
    (tmp_path / "index.html").write_text("<p>mine")
    with RunningDaemon(*flags) as daemon:
        response = daemon.client.get("/completion.js")
        assert response.headers["content-type"].startswith("text/javascript")
        assert "export async function* llama(" in response.text
        for name in re.findall(r'from "\./(.+?)"', response.text):
            assert daemon.client.get(f"/{name}").text == (STATIC / name).read_text()
        if own_page:
            assert daemon.client.get("/").text == "<p>mine"


def test_a_module_of_the_users_own_wins(tmp_path: Path) -> None:
    (tmp_path / "completion.js").write_text("// mine")
    with RunningDaemon("--path", str(tmp_path)) as daemon:
        assert daemon.client.get("/completion.js").text == "// mine"
