"""What holds for every route: loading, keys, origins, unknown paths, disconnects, the queue, shutdown."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from daemon.config import Config, build_config
from daemon.errors import ApiError
from daemon.loading import Prepared, Report
from daemon.serve import StartFailed, run
from runtime.engine import Failed
from runtime.errors import ModelError, NothingToSample, RuntimeFault
from tests.daemon.harness import RunningDaemon, events, prepare_fake, until
from tests.daemon.raw_http import connect, endless, idle_slots, raw_request


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "2", "--metrics") as running:
        yield running


class Loading:
    """A model that loads until it is let go, and then fails if it is told to."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.gate = threading.Event()
        self.failure = failure
        self.ended = False

    def __call__(self, config: Config, report: Report) -> Prepared:
        report("load", 0.5)
        self.gate.wait(60)
        self.ended = True
        if self.failure is not None:
            raise self.failure
        return prepare_fake(config, report)


def test_while_loading_the_port_answers_503_and_the_page_is_served() -> None:
    loading = Loading()
    with RunningDaemon("--api-key", "k", prepare=loading, wait=False) as daemon:
        for method, path in (
            ("GET", "/health"),
            ("POST", "/completion"),
            ("GET", "/nope"),
            ("GET", "/v1/models"),
        ):
            response = daemon.client.request(method, path)
            assert response.status_code == 503
            assert response.json()["error"] == {
                "code": 503,
                "message": "Loading model",
                "type": "unavailable_error",
            }
        assert daemon.client.get("/").status_code == 200
        loading.gate.set()
        until(lambda: daemon.client.get("/health").status_code == 200)


def test_a_model_that_cannot_be_loaded_ends_the_daemon_with_one_line() -> None:
    loading = Loading(ModelError("model.gguf: not a GGUF file"))
    with RunningDaemon(prepare=loading, wait=False) as daemon:
        loading.gate.set()
        daemon.thread.join(timeout=60)
        assert not daemon.thread.is_alive()
        assert str(daemon.daemon.failure) == "model.gguf: not a GGUF file"


def test_a_stop_while_loading_does_not_wait_for_the_model() -> None:
    loading = Loading()
    with RunningDaemon(prepare=loading, wait=False) as daemon:
        daemon.stop()
        assert not loading.ended
        assert daemon.daemon.failure is None
    loading.gate.set()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nope"), ("GET", "/completion"), ("PUT", "/health"), ("POST", "/health"), ("GET", "/slots/0"),
     ("DELETE", "/v1/models"), ("GET", "/../../etc/passwd"), ("GET", "/%2e%2e/daemon/app.py"),
     ("GET", "/app.js/")],
)  # fmt: skip
def test_unknown_paths_and_wrong_methods_are_not_found(daemon: RunningDaemon, method: str, path: str) -> None:
    response = daemon.client.request(method, path)
    assert response.status_code == 404
    assert response.json() == {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}


def test_the_page_is_served_with_a_tag_and_a_strict_policy(daemon: RunningDaemon) -> None:
    page = daemon.client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    again = daemon.client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert daemon.client.get("/app.js").headers["content-type"].startswith("text/javascript")


def test_a_directory_of_ones_own_replaces_the_page(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("a")
    (tmp_path / ".secret").write_text("no")
    with RunningDaemon("--path", str(tmp_path)) as daemon:
        assert daemon.client.get("/").text == "mine"
        assert daemon.client.get("/sub/a.txt").text == "a"
        assert daemon.client.get("/.secret").status_code == 404
        assert daemon.client.get("/app.js").status_code == 404


def test_without_a_page_the_root_is_not_found() -> None:
    with RunningDaemon("--no-ui") as daemon:
        assert daemon.client.get("/").status_code == 404


def test_a_unix_socket_is_served_beside_an_address_and_replaces_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "emberd.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with RunningDaemon("--host", f"127.0.0.1,{path}") as daemon:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://emberd") as client:
            assert client.get("/health").status_code == 200
            assert client.post("/completion", json={"prompt": "a", "n_predict": 1}).status_code == 200
        assert daemon.client.get("/health").status_code == 200


def test_a_socket_in_use_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "emberd.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen()
        config, _ = build_config(["-m", "x", "--host", str(path), "--store", "off", "--log-disable"], {})
        with pytest.raises(StartFailed, match="cannot listen on"):
            run(config, ())


def test_keys_are_asked_for_except_on_public_paths(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# comment\n\nfrom-file\nschl\u00fcssel\n", encoding="utf-8")
    with RunningDaemon("--api-key", "one,two", "--api-key-file", str(keys)) as daemon:
        client = daemon.client
        assert client.get("/health").status_code == 200
        assert client.get("/").status_code == 200
        assert client.options("/completion").status_code == 200
        refused = client.get("/v1/models")
        assert refused.status_code == 401
        assert refused.json()["error"]["message"] == "Invalid API Key"
        assert client.get("/nope").status_code == 401
        for key in ("one", "two", "from-file"):
            assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
            assert client.get("/v1/models", headers={"X-Api-Key": key}).status_code == 200
            assert client.get("/v1/models", headers={"Authorization": f"bearer {key}"}).status_code == 200
        foreign = {b"X-Api-Key": "schl\u00fcssel".encode()}
        assert client.get("/v1/models", headers=foreign).status_code == 200
        for wrong in ("", "on", "one ", "tw\u00f6", "# comment"):
            headers = {b"Authorization": f"Bearer {wrong}x".encode("latin-1")}
            assert client.get("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("flags", "origin", "allowed"),
    [
        ((), "http://a.example", "http://a.example"),
        (("--no-cors-credentials",), "http://a.example", "*"),
        (("--cors-origins", "localhost"), "http://localhost:3000", "http://localhost:3000"),
        (("--cors-origins", "localhost"), "http://[::1]:3000", "http://[::1]:3000"),
        (("--cors-origins", "localhost"), "http://localhost.evil.example", None),
        (("--cors-origins", "http://b.example"), "http://a.example", "http://b.example"),
    ],
)
def test_origins_are_allowed_as_configured(flags: tuple[str, ...], origin: str, allowed: str | None) -> None:
    with RunningDaemon(*flags) as daemon:
        response = daemon.client.options("/completion", headers={"Origin": origin})
        assert response.status_code == 200
        assert response.headers.get("access-control-allow-origin") == allowed
        assert "POST" in response.headers["access-control-allow-methods"]


def test_a_prefix_is_put_before_every_path() -> None:
    with RunningDaemon("--api-prefix", "/llm/", wait=False) as daemon:
        until(lambda: daemon.client.get("/llm/health").status_code == 200)
        assert daemon.client.get("/health").status_code == 404
        assert daemon.client.get("/llmx/health").status_code == 404
        assert daemon.client.get("/llm/").status_code == 200


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_goes_away_frees_its_slot(daemon: RunningDaemon, streamed: bool) -> None:
    daemon.engine.script = endless
    with connect(daemon) as sock:
        sock.sendall(raw_request({"prompt": "a", "stream": streamed}))
        until(lambda: idle_slots(daemon) == 1)
    until(lambda: idle_slots(daemon) == 2)
    assert daemon.engine.cancelled == [daemon.engine.requests[0].request_id]


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(daemon: RunningDaemon) -> None:
    daemon.engine.script = endless
    with connect(daemon) as first, connect(daemon) as second:
        first.sendall(raw_request({"prompt": "a"}))
        second.sendall(raw_request({"prompt": "a"}))
        until(lambda: idle_slots(daemon) == 0)
        with connect(daemon) as third:
            third.sendall(raw_request({"prompt": "a", "stream": True}))
            until(lambda: daemon.engine.statistics().requests_deferred == 1)
        until(lambda: daemon.engine.statistics().requests_deferred == 0)


def test_a_client_that_goes_away_cancels_all_its_completions(daemon: RunningDaemon) -> None:
    daemon.engine.script = endless
    with connect(daemon) as sock:
        sock.sendall(raw_request({"prompt": ["a", "b"]}))
        until(lambda: idle_slots(daemon) == 0)
    until(lambda: idle_slots(daemon) == 2)


def test_four_clients_share_two_slots(daemon: RunningDaemon) -> None:
    answers: list[str] = []

    def ask() -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
        response = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=60)
        answers.append(response.json()["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4 and len(set(answers)) == 1


def test_a_full_queue_is_answered_503_with_a_time_to_retry() -> None:
    with RunningDaemon("-np", "1", "--queue-size", "1") as daemon:
        daemon.engine.script = endless
        with connect(daemon) as first, connect(daemon) as second:
            first.sendall(raw_request({"prompt": "a"}))
            second.sendall(raw_request({"prompt": "a"}))
            until(lambda: len(daemon.engine.requests) == 2)
            response = daemon.post("/completion", {"prompt": "a"})
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "unavailable_error"
            assert int(response.headers["retry-after"]) > 0


def test_an_error_in_mid_stream_is_an_event_and_the_end(daemon: RunningDaemon) -> None:
    daemon.engine.script = endless
    with daemon.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["choices"]
        request_id = daemon.engine.requests[-1].request_id
        daemon.engine._deliver([Failed(request_id, RuntimeFault("the step failed"))])
        data = events("\n".join(lines))
    assert json.loads(data[-1])["error"]["message"] == "the step failed"
    assert "[DONE]" not in data


def test_an_unexpected_error_tells_nothing_of_the_inside(daemon: RunningDaemon) -> None:
    daemon.engine.failure = ValueError("/secret/path")
    assert "secret" not in daemon.error("/completion", {"prompt": "a"}, 500)


def test_a_failing_request_keeps_its_own_status(daemon: RunningDaemon) -> None:
    daemon.engine.failure = ApiError(503, "busy")
    assert daemon.error("/completion", {"prompt": "a"}, 503) == "busy"


def test_biases_that_leave_nothing_to_say_are_the_requests_fault(daemon: RunningDaemon) -> None:
    daemon.engine.failure = NothingToSample("bias and penalties leave no token to sample")
    assert "bias" in daemon.error("/completion", {"prompt": "a"}, 400)


def test_silent_streams_carry_comments(daemon: RunningDaemon) -> None:
    daemon.engine.gate.clear()
    body = {"prompt": "a", "stream": True, "n_predict": 1, "sse_ping_interval": 1}
    with daemon.client.stream("POST", "/completion", json=body) as response:
        lines = response.iter_lines()
        assert next(lines) == ":"
        daemon.engine.gate.set()
        assert any("stop_type" in line for line in lines)


def refuses_connections(daemon: RunningDaemon) -> bool:
    try:
        connect(daemon).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False
    return False


def test_a_stop_lets_running_answers_finish() -> None:
    with RunningDaemon("--drain-timeout", "60") as daemon:
        daemon.engine.gate.clear()
        result: list[httpx.Response] = []
        url = f"{daemon.url}/completion"
        ask = threading.Thread(
            target=lambda: result.append(httpx.post(url, json={"prompt": "a"}, timeout=60))
        )
        ask.start()
        until(lambda: daemon.engine.statistics().requests_processing == 1)
        daemon.request_stop()
        until(lambda: refuses_connections(daemon))
        daemon.engine.gate.set()
        ask.join()
        assert result[0].status_code == 200 and result[0].json()["content"]


def test_a_stop_ends_what_does_not_finish_with_an_error_event() -> None:
    with RunningDaemon("--drain-timeout", "0") as daemon:
        daemon.engine.script = endless
        with daemon.client.stream("POST", "/completion", json={"prompt": "a", "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            daemon.request_stop()
            data = events("\n".join(lines))
        assert json.loads(data[-1])["error"]["code"] == 503


def test_a_stop_does_not_wait_for_a_client_that_stopped_reading() -> None:
    with RunningDaemon("--drain-timeout", "0") as daemon:
        daemon.engine.script = lambda request: [" w" * 5000] * 100_000
        with connect(daemon) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(raw_request({"prompt": "a", "stream": True}))
            time.sleep(0.5)
            daemon.stop()
