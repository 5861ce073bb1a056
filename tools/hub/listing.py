"""What a repository holds, by the hub's API."""

import time
from collections.abc import Callable

import httpx
import msgspec

from tools.errors import FetchError
from tools.hub.client import Answer, Attempts, Client, Interrupted, Patience
from tools.hub.names import RepoFile, is_safe_path

_MAX_PAGES = 200
_MAX_BYTES = 16 << 20
_MAX_SECONDS = 120.0
_HEX = frozenset("0123456789abcdef")


class _Lfs(msgspec.Struct):
    oid: str = ""
    size: int | None = None


class _Entry(msgspec.Struct):
    path: str
    type: str = ""
    size: int | None = None
    lfs: _Lfs | None = None


def list_files(
    client: Client, endpoint: str, repo: str, say: Callable[[str], None], patience: Patience
) -> list[RepoFile]:
    """The files of the repository's main branch, in the hub's order; names that cannot be kept are left out.

    Raises FetchError: unknown, private or gated repository, hub out of reach, not a hub.
    """
    url = f"{endpoint}/api/models/{repo}/tree/main?recursive=1"
    files: list[RepoFile] = []
    for _ in range(_MAX_PAGES):
        body, following = _page(client, url, repo, Attempts(patience, say))
        try:
            entries = msgspec.json.decode(body, type=list[_Entry])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise FetchError(f"{endpoint} does not answer like the Hugging Face API") from None
        files += [_file(one) for one in entries if one.type == "file" and is_safe_path(one.path)]
        if not following:
            return files
        url = following
    raise FetchError(f"{repo}: the hub lists no end of files")


def refusal(client: Client, answer: Answer, subject: str, terms: str) -> FetchError:
    """What an answer that brings no file means. `terms` is the page where access can be asked for."""
    code = answer.header("X-Error-Code")
    if code == "GatedRepo" or answer.status == 403:
        if client.has_token:
            return FetchError(f"{subject}: gated, and HF_TOKEN has no access: ask for it at {terms}")
        return FetchError(f"{subject}: gated: accept its terms at {terms} and set HF_TOKEN")
    if answer.status == 401:
        if client.has_token:
            return FetchError(f"{subject}: not found on {answer.host}, or not for this HF_TOKEN")
        return FetchError(f"{subject}: not found on {answer.host}, or private: then set HF_TOKEN")
    if answer.status in (404, 410):
        return FetchError(f"{subject}: not found on {answer.host} (404)")
    return FetchError(f"{subject}: {answer.host} answered {answer.status}")


def _page(client: Client, url: str, repo: str, attempts: Attempts) -> tuple[bytes, str]:
    """A page's body and the address of the next one, "" after the last."""
    while True:
        try:
            with client.get(url, {"Accept": "application/json"}) as answer:
                if answer.status != 200:
                    raise refusal(client, answer, repo, url.partition("/api/")[0] + f"/{repo}")
                return _small_body(answer), _next_page(answer)
        except Interrupted as error:
            attempts.fail(error)


def _small_body(answer: Answer) -> bytes:
    body = bytearray()
    deadline = time.monotonic() + _MAX_SECONDS
    for chunk in answer.response.iter_raw():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise FetchError(f"{answer.host}: the list of files has no end")
        if time.monotonic() > deadline:
            raise Interrupted(f"{answer.host}: too slow")
    return bytes(body)


def _next_page(answer: Answer) -> str:
    link = answer.response.links.get("next", {}).get("url", "")
    if not link:
        return ""
    here = answer.response.url
    try:
        there = here.join(link)
    except (httpx.InvalidURL, ValueError):
        there = httpx.URL("")
    if (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port):
        raise FetchError(f"{answer.host}: its list of files goes on elsewhere")
    return str(there)


def _file(entry: _Entry) -> RepoFile:
    size, sha256 = entry.size, ""
    if entry.lfs is not None:
        size = entry.lfs.size if entry.lfs.size is not None else size
        oid = entry.lfs.oid.removeprefix("sha256:").lower()
        sha256 = oid if len(oid) == 64 and set(oid) <= _HEX else ""
    return RepoFile(entry.path, size if size is None or size >= 0 else None, sha256)
