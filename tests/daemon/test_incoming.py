"""What a client sends reaches its request at once, and one request's trouble stays its own."""

import socket
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing
from hypercorn.typing import ASGIReceiveEvent

from daemon.config import build_config
from daemon.http_server import HttpServer
from daemon.incoming import Incoming

GONE: ASGIReceiveEvent = {"type": "http.disconnect"}


def body(data: bytes, more: bool) -> ASGIReceiveEvent:
    return {"type": "http.request", "body": data, "more_body": more}


def test_what_came_before_is_taken_first_and_what_comes_later_at_once() -> None:
    async def main() -> None:
        incoming, taken = Incoming(), []
        await incoming.put(body(b"a", True))
        incoming.hand_to(taken.append)
        assert taken == [body(b"a", True)] and not incoming.is_whole
        await incoming.put(body(b"b", False))
        await incoming.put(GONE)
        assert taken[1:] == [body(b"b", False), GONE] and incoming.is_whole

    trio.run(main)


def test_who_waits_gets_one_event_after_the_other() -> None:
    async def main() -> None:
        incoming = Incoming()
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for event in (body(b"a", True), body(b"b", False)):
                    await incoming.put(event)
                await trio.testing.wait_all_tasks_blocked()
                await incoming.put(GONE)

            nursery.start_soon(send)
            received = [await incoming.receive() for _ in range(3)]
        assert received == [body(b"a", True), body(b"b", False), GONE]

    trio.run(main)


def test_what_comes_after_the_answer_is_nobodys() -> None:
    async def main() -> None:
        incoming, taken = Incoming(), []
        incoming.hand_to(taken.append)
        incoming.ignore()
        await incoming.put(GONE)
        assert not taken and incoming.is_whole

    trio.run(main)


@pytest.mark.parametrize("has_begun", [False, True], ids=["before its answer", "in its answer"])
def test_a_failure_of_the_application_ends_its_request_only(
    monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    log = structlog.testing.CapturingLogger()
    monkeypatch.setattr("daemon.incoming.logger", lambda: log)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        if scope["path"] == "/bad":
            if has_begun:
                await send(head)
            raise RuntimeError("broken")
        await send(head)
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})

    async def ask(address: Any, path: str) -> bytes:
        stream = await trio.open_tcp_stream(*address)
        async with stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            return b"".join([part async for part in stream])

    async def main() -> list[bytes]:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            server = HttpServer(app, build_config(["-m", "x.gguf"], {})[0], [sock])
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                answers = [await ask(sock.getsockname(), path) for path in ("/bad", "/good")]
                await server.stop_accepting()
        return answers

    bad, good = trio.run(main)
    assert bad.startswith(b"HTTP/1.1 200 " if has_begun else b"HTTP/1.1 500 ")
    assert good.startswith(b"HTTP/1.1 200 ") and good.endswith(b"ok")
    assert [(name, args, str(facts["exc_info"])) for name, args, facts in log.calls] == [
        ("error", ("request failed",), "broken")
    ]
