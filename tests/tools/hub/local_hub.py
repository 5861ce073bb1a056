"""A hub on 127.0.0.1: Hugging Face's listing and file addresses, and a second port that plays the CDN."""

import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit


@dataclass
class File:
    """A file of a repository and the ways in which it may misbehave."""

    content: bytes
    lfs: bool = True
    etag: str = ""
    listed_sha256: str = ""
    listed_size: int | None = None
    drop_after: int | None = None
    """Bytes after which the connection breaks, `drops` times."""
    drops: int = 0
    stall: float = 0.0
    """Seconds of silence before the body, once."""
    ranges: bool = True
    chunked: bool = False
    served: bytes | None = None
    """What is sent instead of the content."""

    @property
    def sha256(self) -> str:
        return self.listed_sha256 or hashlib.sha256(self.content).hexdigest()


@dataclass
class Seen:
    """A request as it arrived."""

    port: int
    path: str
    headers: dict[str, str]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that leaves: they are killed and lose patience here on purpose."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@dataclass
class LocalHub:
    """Use as a context manager. `repos` maps user/repo to its files by path."""

    repos: dict[str, dict[str, File]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    """Repositories whose files need `token`."""
    token: str = "hf_sesame"
    cdn: bool = True
    redirect_to: str = ""
    """Where file addresses redirect to instead of the CDN; ``{path}`` is the file's address."""
    linked: bool = True
    page_size: int = 1000
    raw_listing: bytes | None = None
    failures: list[int] = field(default_factory=list)
    """Statuses that the next requests get."""
    on_body: Callable[[], None] | None = None
    seen: list[Seen] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._servers = [self._serve(self._api), self._serve(self._content)]
        self.url, self.cdn_url = (f"http://127.0.0.1:{one.server_port}" for one in self._servers)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def requests(self, part: str = "/resolve/") -> list[Seen]:
        """Requests for the hub itself whose address has `part`."""
        return [one for one in self.seen if part in one.path and self.url.endswith(f":{one.port}")]

    def cdn_requests(self) -> list[Seen]:
        return [one for one in self.seen if self.cdn_url.endswith(f":{one.port}")]

    def file_url(self, repo: str, path: str) -> str:
        return f"{self.url}/{repo}/resolve/main/{path}"

    def _serve(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> ThreadingHTTPServer:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                port = self.server.server_address[1]
                hub.seen.append(Seen(int(port), self.path, dict(self.headers)))
                if hub.failures:
                    send(self, hub.failures.pop(0), b"busy")
                    return
                answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                return

        server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def _api(self, request: BaseHTTPRequestHandler) -> None:
        address = urlsplit(request.path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/main", address.path):
            self._list(request, match[1], address.query)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/main/(.+)", address.path):
            self._resolve(request, match[1], unquote(match[2]))
        else:
            send(request, 404, b"nothing here")

    def _list(self, request: BaseHTTPRequestHandler, repo: str, query: str) -> None:
        if self.raw_listing is not None:
            send(request, 200, self.raw_listing)
            return
        if repo not in self.repos:
            # what Hugging Face tells somebody without a token
            anonymous = "Authorization" not in request.headers
            send(request, 401 if anonymous else 404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        start = int(query.partition("cursor=")[2] or 0)
        entries = [listed(path, file) for path, file in self.repos[repo].items()]
        headers = {"Content-Type": "application/json"}
        if start + self.page_size < len(entries):
            following = f"{self.url}{request.path.partition('?')[0]}?cursor={start + self.page_size}"
            headers["Link"] = f'<{following}>; rel="next"'
        send(request, 200, json.dumps(entries[start : start + self.page_size]).encode(), headers)

    def _resolve(self, request: BaseHTTPRequestHandler, repo: str, path: str) -> None:
        authorised = request.headers.get("Authorization") == f"Bearer {self.token}"
        if repo in self.gated and not authorised:
            status = 403 if "Authorization" in request.headers else 401
            send(request, status, b"gated", {"X-Error-Code": "GatedRepo"})
            return
        file = self.repos.get(repo, {}).get(path)
        if file is None:
            send(request, 404, b"no such entry", {"X-Error-Code": "EntryNotFound"})
        elif self.cdn or self.redirect_to:
            target = self.redirect_to.format(path=request.path) or f"{self.cdn_url}{request.path}"
            headers = {"Location": target}
            if self.linked and file.lfs:
                headers |= {"X-Linked-ETag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
            send(request, 302, b"elsewhere", headers)
        else:
            self._send_file(request, file)

    def _content(self, request: BaseHTTPRequestHandler) -> None:
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/main/(.+)", urlsplit(request.path).path)
        if match is None:
            send(request, 404, b"nothing here")
            return
        self._send_file(request, self.repos[match[1]][unquote(match[2])])

    def _send_file(self, request: BaseHTTPRequestHandler, file: File) -> None:
        content = file.content if file.served is None else file.served
        etag = file.etag or f'"{hashlib.md5(content).hexdigest()}"'
        if etag != "none" and request.headers.get("If-None-Match") == etag:
            send(request, 304, b"", {"ETag": etag})
            return
        start, status = 0, 200
        headers = {} if etag == "none" else {"ETag": etag}
        match = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        if match and file.ranges and request.headers.get("If-Range", etag) == etag:
            start, status = int(match[1]), 206
            if start >= len(content):
                send(request, 416, b"", {"Content-Range": f"bytes */{len(content)}"})
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send_body(request, file, status, content[start:], headers)

    def _send_body(
        self, request: BaseHTTPRequestHandler, file: File, status: int, body: bytes, headers: dict[str, str]
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        if not file.chunked:
            request.send_header("Content-Length", str(len(body)))
        request.send_header("Connection", "close")
        request.end_headers()
        request.close_connection = True
        if file.stall:
            silence, file.stall = file.stall, 0.0
            time.sleep(silence)
        if file.drop_after is not None and file.drops:
            file.drops -= 1
            body = body[: file.drop_after]
        half = len(body) // 2
        for piece in (body[:half], body[half:]):
            request.wfile.write(piece)
            request.wfile.flush()
            if self.on_body is not None:
                self.on_body()


def listed(path: str, file: File) -> dict[str, Any]:
    """An entry of the listing, as the hub has it."""
    size = len(file.content) if file.listed_size is None else file.listed_size
    entry: dict[str, Any] = {"type": "file", "oid": "0" * 40, "size": size, "path": path}
    if file.lfs:
        entry["lfs"] = {"oid": file.sha256, "size": size, "pointerSize": 134}
    return entry


def send(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    if status != 304:
        request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if status != 304:
        request.wfile.write(body)
