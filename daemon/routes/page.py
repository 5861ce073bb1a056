"""The chat page and its assets, or a directory of the user's own (``--path``)."""

import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quart import Response, request
from quart_trio import QuartTrio

from daemon.config import Config
from daemon.errors import NOT_FOUND
from daemon.flags import UsageError
from webui import STATIC

MAX_BYTES = 256 * 2**20
"""All files are held in memory: a page is small, a mistaken ``--path /`` is not."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
"""Nothing that a model writes may run or load, even if it slipped through the page's own cleaning."""

_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".webmanifest": "application/manifest+json"}


@dataclass(frozen=True, slots=True)
class Asset:
    """`own` marks files of emberd's page, which get its content policy."""

    data: bytes
    content_type: str
    etag: str
    own: bool


Assets = Mapping[str, Asset]

_MODULES = ("/completion.js", "/sse.js")


def load_assets(config: Config) -> Assets:
    """All files to serve, by request path. Raises UsageError when --path is no directory."""
    if config.static_path:
        root = Path(config.static_path)
        if not root.is_dir():
            raise UsageError(f"--path: {root} is not a directory")
        # pages written for llama-server find its module also where they do not bring it
        modules = {name: _asset(STATIC / name[1:], own=True) for name in _MODULES}
        return modules | _index(root, own=False)
    return _index(STATIC, own=True) if config.ui else {}


def _index(root: Path, *, own: bool) -> dict[str, Asset]:
    assets: dict[str, Asset] = {}
    n_bytes = 0
    for file in sorted(root.rglob("*")):
        relative = file.relative_to(root)
        if file.is_file() and not any(part.startswith(".") for part in relative.parts):
            n_bytes += file.stat().st_size
            if n_bytes > MAX_BYTES:
                raise UsageError(f"--path: {root} holds more than {MAX_BYTES >> 20} MiB")
            assets[f"/{relative.as_posix()}"] = _asset(file, own)
    if "/index.html" in assets:
        assets["/"] = assets["/index.html"]
    return assets


def _asset(file: Path, own: bool) -> Asset:
    data = file.read_bytes()
    kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    if kind.startswith("text/") or kind.endswith(("json", "xml")):
        kind += "; charset=utf-8"
    return Asset(data, kind, hashlib.blake2b(data, digest_size=16).hexdigest(), own)


def register(app: QuartTrio, assets: Assets) -> None:
    @app.get("/", endpoint="page")
    @app.get("/<path:path>", endpoint="asset")
    async def asset(path: str = "") -> Response:
        found = assets.get(f"/{path}")
        if found is None:
            raise NOT_FOUND
        return _reply(found)


def _reply(asset: Asset) -> Response:
    quoted = f'"{asset.etag}"'
    matches = request.headers.get("If-None-Match", "")
    is_known = quoted in (tag.strip().removeprefix("W/") for tag in matches.split(","))
    response = Response(b"" if is_known else asset.data, status=304 if is_known else 200)
    response.content_type = asset.content_type
    response.headers["ETag"] = quoted
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Content-Type-Options"] = "nosniff"
    if asset.own:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["Referrer-Policy"] = "no-referrer"
    return response
