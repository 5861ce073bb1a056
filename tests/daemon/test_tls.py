"""HTTPS, with a certificate that is only for tests and trusted by nobody."""

import socket
import ssl
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.harness import RunningDaemon, events, until

FOLDER = Path(__file__).resolve().parents[1] / "data" / "tls"
CERTIFICATE, KEY = str(FOLDER / "cert.pem"), str(FOLDER / "key.pem")


class SecureDaemon(RunningDaemon):
    def __init__(self) -> None:
        super().__init__("-np", "2", "--ssl-cert-file", CERTIFICATE, "--ssl-key-file", KEY, wait=False)


@pytest.fixture(scope="module")
def daemon() -> Iterator[SecureDaemon]:
    with SecureDaemon() as running:
        running.client = httpx.Client(base_url=running.url, verify=trusting(), timeout=60)
        running.engine = running._engines.get(timeout=60)
        until(lambda: running.client.get("/health").status_code == 200)
        yield running
        running.client.close()


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CERTIFICATE)


def connect(daemon: RunningDaemon) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(daemon.url.rsplit(":", 1)[1])), timeout=60)


def idle_slots(daemon: RunningDaemon) -> int:
    return int(daemon.client.get("/health").json()["slots_idle"])


def test_answers_and_streams_come_over_https(daemon: RunningDaemon) -> None:
    assert daemon.url.startswith("https://")
    body: dict[str, Any] = {"prompt": "a", "n_predict": 3}
    assert daemon.post("/completion", body).json()["content"] == " w0 w1 w2"
    assert len(events(daemon.post("/completion", body | {"stream": True}).text)) == 4
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{daemon.url}/health")


@pytest.mark.parametrize("hello", [b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x05", b""])
def test_what_is_no_tls_harms_nobody(daemon: RunningDaemon, hello: bytes) -> None:
    with connect(daemon) as sock:
        sock.sendall(hello)
        sock.shutdown(socket.SHUT_WR)
        assert b" 200 " not in sock.recv(4096)
    assert daemon.client.get("/health").status_code == 200


def test_a_client_that_goes_away_frees_its_slot(daemon: RunningDaemon) -> None:
    daemon.engine.script = lambda request: list(repeat(" w", 1_000_000))
    with trusting().wrap_socket(connect(daemon), server_hostname="localhost") as sock:
        sock.sendall(
            b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n" + b'{"prompt": "a"}'
        )
        until(lambda: idle_slots(daemon) == 1)
    until(lambda: idle_slots(daemon) == 2)
