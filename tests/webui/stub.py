"""A stand-in for the daemon that says what a test tells it: the page's routes, over the standard library."""

import json
import mimetypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from webui import STATIC

MODEL = "SmolLM2-135M-Instruct.Q4_1"
TIMINGS = {
    "cache_n": 1498,
    "prompt_n": 12,
    "prompt_ms": 40.0,
    "predicted_n": 57,
    "predicted_ms": 1000.0,
    "predicted_per_second": 56.04,
    "cache_source": "store",
}


@dataclass
class Answer:
    """One answer to a chat request. The stream waits for `gate` after the first `before_gate` pieces.

    `progress` are the (total, cache, processed) of its prompt that are told before.
    """

    pieces: list[str] = field(default_factory=list)
    gate: threading.Event | None = None
    before_gate: int = 1
    timings: dict[str, object] | None = field(default_factory=lambda: dict(TIMINGS))
    finish: str = "stop"
    status: int = 200
    error: dict[str, object] | None = None
    break_off: bool = False
    progress: list[tuple[int, int, int]] = field(default_factory=list)


def answer(text: str, **options: Any) -> Answer:
    """An answer that comes word by word."""
    words = text.split(" ")
    return Answer([word + " " for word in words[:-1]] + words[-1:], **options)


NO_KEY = Answer(status=401, error={"code": 401, "message": "Invalid API Key", "type": "authentication_error"})
LOADING = Answer(status=503, error={"code": 503, "message": "Loading model", "type": "unavailable_error"})


class StubDaemon:
    """Serves on a free port of 127.0.0.1 under `prefix`; answers come from `answers`, in order."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.answers: list[Answer] = []
        self.requests: list[list[dict[str, str]]] = []
        self.bodies: list[dict[str, Any]] = []
        self.key = ""
        self.forgotten: list[list[dict[str, str]]] = []
        self.healthy = True
        self.away = False
        self.disconnected = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.prefix}/"

    def close(self) -> None:
        for planned in self.answers:
            if planned.gate:
                planned.gate.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

            def parse_request(self) -> bool:
                # A daemon that is away closes each connection without a word, as its host's kernel would.
                self.close_connection = stub.away or self.close_connection
                return not stub.away and super().parse_request()

            def lacks_key(self) -> bool:
                if not stub.key or self.headers["Authorization"] == f"Bearer {stub.key}":
                    return False
                self.reply(401, json.dumps({"error": NO_KEY.error}).encode())
                return True

            def do_GET(self) -> None:
                path = self.path.removeprefix(stub.prefix).split("?")[0].lstrip("/")
                routes: dict[str, Callable[[], object]] = {
                    "health": lambda: {"status": "ok"},
                    "v1/models": lambda: {
                        "object": "list",
                        "data": [{"id": f"/models/{MODEL}.gguf", "object": "model"}],
                    },
                }
                if path in routes:
                    if path != "health" and self.lacks_key():
                        return
                    if stub.healthy:
                        self.reply(200, json.dumps(routes[path]()).encode())
                    else:
                        self.reply(503, json.dumps({"error": LOADING.error}).encode())
                    return
                file = STATIC / (path or "index.html")
                if not self.path.startswith(stub.prefix + "/") or not file.is_file():
                    self.reply(404, b'{"error":{"code":404,"message":"File Not Found"}}')
                    return
                self.reply(200, file.read_bytes(), mimetypes.guess_type(file.name)[0] or "text/plain")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.lacks_key():
                    return
                if self.path == f"{stub.prefix}/store/forget":
                    stub.forgotten.append(body["messages"])
                    self.reply(200, b"{}")
                    return
                stub.requests.append(body["messages"])
                stub.bodies.append(body)
                planned = stub.answers.pop(0)
                if planned.error is not None and planned.status != 200:
                    self.reply(planned.status, json.dumps({"error": planned.error}).encode())
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    for event in chunks(planned):
                        self.wfile.write(f"data: {event}\n\n".encode())
                        self.wfile.flush()
                except OSError:
                    stub.disconnected.set()

            def reply(self, status: int, content: bytes, kind: str = "application/json") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler


def chunks(planned: Answer) -> Iterator[str]:
    """The data of the events, as `/v1/chat/completions` streams them."""
    yield chunk({"role": "assistant", "content": None})
    for total, cache, processed in planned.progress:
        told = {"total": total, "cache": cache, "processed": processed, "time_ms": 1}
        yield chunk({"role": "assistant", "content": None}, prompt_progress=told)
    for index, piece in enumerate(planned.pieces):
        if planned.gate is not None and index == planned.before_gate:
            # Writing on while it waits is how a server notices that its client has gone.
            while not planned.gate.wait(0.05):
                yield chunk({})
        yield chunk({"content": piece})
    if planned.break_off:
        return
    if planned.error is not None:
        yield json.dumps({"error": planned.error})
        return
    yield chunk({}, planned.finish, **({"timings": planned.timings} if planned.timings else {}))
    yield "[DONE]"


def chunk(delta: dict[str, object], finish: str | None = None, **extra: object) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"object": "chat.completion.chunk", "model": MODEL, "choices": [choice], **extra})
