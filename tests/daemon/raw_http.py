"""Requests written byte by byte, for what a client library would not send."""

import http.client
import json
import socket
from typing import Any

from runtime.engine import GenerateRequest
from tests.daemon.harness import RunningDaemon


def endless(request: GenerateRequest) -> list[str]:
    return [" w"] * 1_000_000


def raw_request(body: dict[str, Any], path: str = "/completion") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def connect(daemon: RunningDaemon) -> socket.socket:
    port = int(daemon.url.rsplit(":", 1)[1])
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def read_status(sock: socket.socket) -> int:
    """Read one whole response and return its status."""
    response = http.client.HTTPResponse(sock)
    response.begin()
    response.read()
    return response.status


def idle_slots(daemon: RunningDaemon) -> int:
    return int(daemon.client.get("/health").json()["slots_idle"])
