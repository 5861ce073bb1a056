"""What a client may do to its connection: junk, silence, haste, going away. Nobody else notices."""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.worker_context import WorkerContext

from daemon.connection import BoundedStream, Connection
from runtime.engine import GenerateRequest
from tests.daemon.harness import RunningDaemon, until
from tests.daemon.raw_http import connect, endless, idle_slots, raw_request, read_status


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("-np", "2", "--metrics") as running:
        yield running


def test_a_body_that_is_too_large_is_refused(daemon: RunningDaemon) -> None:
    with connect(daemon) as sock:
        sock.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n")
        assert b" 413 " in sock.recv(4096)


@pytest.mark.parametrize("field", [b'"n_predict": 1.0', b'"n_predict": "x"'], ids=["whole floats", "wrong"])
def test_a_large_body_is_checked_beside_the_event_loop(daemon: RunningDaemon, field: bytes) -> None:
    body = b"{" + field + b', "prompt": [' + b",".join([b"1"] * 2_000_000) + b"]}"
    loop, process = daemon.loop_seconds(), time.process_time()
    assert daemon.client.post("/completion", content=body).status_code == 400
    loop, process = daemon.loop_seconds() - loop, time.process_time() - process
    # reading it off the connection is the loop's own work
    assert loop < process / 3, f"{loop:.2f} of {process:.2f} s"


@pytest.mark.parametrize("junk", [b"\x00\xff\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n"])
def test_what_is_not_http_is_answered_400_and_harms_nobody(daemon: RunningDaemon, junk: bytes) -> None:
    with connect(daemon) as sock:
        sock.sendall(junk)
        assert b" 400 " in sock.recv(4096)
    assert daemon.client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 64,
        b"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"POST /completion HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET /%ff%fe%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET // HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_unusual_protocols_harm_nobody(daemon: RunningDaemon, head: bytes) -> None:
    with connect(daemon) as sock:
        sock.settimeout(3)
        sock.sendall(head)
        with suppress(TimeoutError, ConnectionResetError):
            sock.recv(4096)
    assert daemon.client.get("/health").status_code == 200
    assert daemon.thread.is_alive()


def test_endless_headers_are_cut_off(daemon: RunningDaemon) -> None:
    with connect(daemon) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nA: " + b"x" * 200_000)
        assert b" 431 " in sock.recv(4096)


def test_many_idle_connections_do_not_keep_others_out(daemon: RunningDaemon) -> None:
    socks = [connect(daemon) for _ in range(200)]
    assert daemon.client.get("/health").status_code == 200
    for sock in socks:
        sock.close()


def half_closed(port: int) -> int:
    """Connections to `port` whose client has gone, but not the server."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "08" for row in rows)


@pytest.mark.parametrize("request_sent", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"POST"])
def test_a_connection_that_its_client_closed_is_closed(daemon: RunningDaemon, request_sent: bytes) -> None:
    if request_sent == b"POST":
        request_sent = raw_request({"content": "a"}, "/tokenize")
    for _ in range(20):
        with connect(daemon) as sock:
            if request_sent:
                sock.sendall(request_sent)
                assert read_status(sock) == 200
    until(lambda: half_closed(int(daemon.url.rsplit(":", 1)[1])) == 0)


def test_idle_connections_beyond_the_limit_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.http_server.MAX_CONNECTIONS", 4)
    with RunningDaemon() as daemon:
        daemon.engine.gate.clear()
        with connect(daemon) as busy:
            busy.sendall(raw_request({"prompt": "a", "n_predict": 1}))
            until(lambda: daemon.engine.statistics().requests_processing == 1)
            half_asked = [connect(daemon) for _ in range(10)]
            for sock in half_asked:
                sock.sendall(b"GET /health HTTP/1.1\r\n")
            assert httpx.get(f"{daemon.url}/health", timeout=60).status_code == 200
            daemon.engine.gate.set()
            assert read_status(busy) == 200
        for sock in half_asked:
            sock.close()


def test_a_request_that_is_never_finished_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.http_server.KEEP_ALIVE_SECONDS", 1)
    with RunningDaemon("--timeout", "1") as daemon, connect(daemon) as head, connect(daemon) as body:
        head.sendall(b"GET /health HTTP/1.1\r\nHost:")
        body.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        assert read_status(body) == 408
        assert body.recv(4096) == b"" == head.recv(4096)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_half_closes_is_taken_for_gone(daemon: RunningDaemon, streamed: bool) -> None:
    daemon.engine.script = endless
    with connect(daemon) as sock:
        sock.sendall(raw_request({"prompt": "a", "stream": streamed}))
        until(lambda: idle_slots(daemon) == 1)
        sock.shutdown(socket.SHUT_WR)
        until(lambda: idle_slots(daemon) == 2)
        while sock.recv(65536):
            pass


@pytest.mark.parametrize("n_read", [0, 100])
def test_a_client_that_asks_twice_at_once_and_goes_away_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch, n_read: int
) -> None:
    monkeypatch.setattr("daemon.http_server.MAX_CONNECTIONS", 2)
    with RunningDaemon() as daemon:
        daemon.engine.script = endless
        for _ in range(3):
            with connect(daemon) as sock:
                sock.sendall(raw_request({"prompt": "a", "stream": True}) * 2)
                until(lambda: idle_slots(daemon) < 4)
                assert len(sock.recv(n_read)) <= n_read
            until(lambda: idle_slots(daemon) == 4)
        assert httpx.get(f"{daemon.url}/health", timeout=60).status_code == 200


def test_two_requests_may_be_sent_at_once_over_one_connection(daemon: RunningDaemon) -> None:
    request = raw_request({"prompt": "a", "n_predict": 1, "response_fields": ["content"]})
    with connect(daemon) as sock:
        sock.sendall(request + request)
        received = b""
        while received.count(b'{"content":" w0"}') < 2:
            data = sock.recv(4096)
            assert data
            received += data


def test_an_answer_before_the_body_leaves_the_connection_usable(daemon: RunningDaemon) -> None:
    body = b'{"a": 1}'
    with connect(daemon) as sock:
        for _ in range(3):
            sock.sendall(b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
            time.sleep(0.05)
            sock.sendall(body)
            assert read_status(sock) == 404
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_status(sock) == 200


def test_a_body_that_never_comes_does_not_hold_back_the_refusal(daemon: RunningDaemon) -> None:
    with connect(daemon) as sock:
        sock.sendall(b"POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        assert read_status(sock) == 404
        assert sock.recv(4096) == b""


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (raw_request({"content": "a"}, "/tokenize"), 200),
        (raw_request({"prompt": "a", "n_predict": 3}), 200),
    ],
    ids=["get", "head", "missing", "post", "completion"],
)
def test_an_answer_of_known_length_is_one_write(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, asked: bytes, status: int
) -> None:
    written: list[bytes] = []
    real = BoundedStream.send_now

    def noting(self: BoundedStream, data: bytes) -> bytes:
        written.append(data)
        return real(self, data)

    monkeypatch.setattr(BoundedStream, "send_now", noting)
    with connect(daemon) as sock:
        for _ in range(2):
            written.clear()
            sock.sendall(asked)
            received = sock.recv(65536)
            assert received.startswith(b"HTTP/1.1 %d " % status)
            assert written == [received]
            assert (b"\r\n\r\n" in received) and received.endswith(b"\r\n\r\n") == asked.startswith(b"HEAD")


def test_the_head_of_a_stream_does_not_wait_for_its_first_token(daemon: RunningDaemon) -> None:
    def close_the_gate(request: GenerateRequest) -> list[str]:
        daemon.engine.gate.clear()
        return [" w"]

    daemon.engine.script = close_the_gate
    with connect(daemon) as sock:
        sock.sendall(raw_request({"prompt": "a", "stream": True}))
        assert sock.recv(65536).endswith(b"\r\n\r\n")
        daemon.engine.gate.set()
        assert b"data: " in sock.recv(65536)


class HalfStream:
    """Takes half of what it is given without a wait, and notes all it has."""

    is_broken = False

    def __init__(self) -> None:
        self.received = b""

    def send_now(self, data: bytes) -> bytes:
        self.received += data[: len(data) // 2]
        return data[len(data) // 2 :]

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.received += data


def test_what_was_begun_is_written_to_its_end_by_who_is_cancelled() -> None:
    """Over HTTP/2 others share the connection: half a frame would garble theirs."""

    async def main() -> bytes:
        stream = HalfStream()
        any_of: Any = stream
        config = HypercornConfig()
        connection = Connection({}, None, config, WorkerContext(None), any_of)
        with trio.CancelScope() as scope:
            scope.cancel()
            await connection._write(b"0123456789")
        return stream.received

    assert trio.run(main) == b"0123456789"


def test_an_idle_connection_is_closed_after_the_keep_alive_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.http_server.KEEP_ALIVE_SECONDS", 0.5)
    with RunningDaemon() as daemon, connect(daemon) as sock:
        for _ in range(2):
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_status(sock) == 200
            time.sleep(0.3)
        assert sock.recv(1) == b""


def test_stopping_closes_idle_connections_at_once() -> None:
    with RunningDaemon() as daemon, connect(daemon) as fresh, connect(daemon) as used:
        used.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_status(used) == 200
        daemon.request_stop()
        assert fresh.recv(1) == used.recv(1) == b""
