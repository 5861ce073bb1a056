"""HTTP as downloads need it: where a token may go, which redirects are followed, what is worth a retry."""

import logging
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Self

import httpx

from tools.errors import FetchError
from tools.hub.names import is_safe_path, shown

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 10
_WORTH_A_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 60.0
_HEX = frozenset("0123456789abcdef")


class Interrupted(Exception):
    """An attempt failed in a way that another one may mend. `wait` is the pause that the server asks for, in
    seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds until a silent server counts as lost, and how often in a row an attempt may bring nothing.

    The pause after the first failure is `pause`, and doubles. A connection that brings less than
    `slowest` bytes in `window` seconds is dropped as if it had broken.
    """

    connect: float = 15.0
    read: float = 30.0
    attempts: int = 5
    pause: float = 1.0
    window: float = 60.0
    slowest: int = 64 << 10


class Attempts:
    """Counts fruitless attempts and waits between them."""

    def __init__(self, patience: Patience, say: Callable[[str], None]) -> None:
        self._patience = patience
        self._say = say
        self._failed = 0

    def succeed(self) -> None:
        """Something came of the last attempt: start counting anew."""
        self._failed = 0

    def fail(self, error: Interrupted) -> None:
        """Wait before the next attempt. Raises FetchError with the reason when there have been enough."""
        self._failed += 1
        if self._failed >= self._patience.attempts:
            raise FetchError(str(error))
        pause = self._patience.pause * 2 ** (self._failed - 1)
        pause = min(max(pause, error.wait), _LONGEST_WAIT)
        self._say(f"{error}; trying again in {pause:.0f} s")
        time.sleep(pause)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response whose body has not been read. `linked_sha256` is what the first server says of the content
    that it redirects to (Hugging Face's X-Linked-ETag), "" if nothing."""

    response: httpx.Response
    linked_sha256: str

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def host(self) -> str:
        return self.response.url.host

    def header(self, name: str) -> str:
        value: str = self.response.headers.get(name, "")
        return value


class Client:
    """Use as a context manager. `token` is sent to the endpoint's own origin and nowhere else."""

    def __init__(self, endpoint: str, token: str, patience: Patience) -> None:
        self.patience = patience
        self.has_token = bool(token)
        self._endpoint = _parse(endpoint, "HF_ENDPOINT")
        self._token = token
        if not (token.isascii() and token.isprintable() and " " not in token):
            raise FetchError("HF_TOKEN has characters that no token can have")
        for library in ("httpx", "httpcore"):
            # they log whole URLs, and those of a CDN are signed
            logging.getLogger(library).setLevel(logging.WARNING)
        try:
            self._http = httpx.Client(
                timeout=httpx.Timeout(patience.read, connect=patience.connect),
                headers={"User-Agent": f"emberd/{version('emberd')}", "Accept-Encoding": "identity"},
            )
        except (ValueError, ImportError, OSError) as error:
            # a proxy or a certificate file that the environment names and that cannot be used
            raise FetchError(f"HTTP settings of the environment: {shown(str(error))}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._http.close()

    @contextmanager
    def get(self, url: str, headers: dict[str, str]) -> Iterator[Answer]:
        """The answer to a GET after redirects; its body is read inside the block.

        Raises Interrupted, also for what breaks while the body is read, and FetchError for what no retry
        mends: a redirect to elsewhere than the web or from https to http, a certificate that is not trusted.
        """
        start = here = _parse(url, "the URL")
        linked = ""
        for hop in range(_MAX_REDIRECTS + 1):
            with self._send(here, headers) as response:
                if hop == 0:
                    linked = _sha256_in(response.headers.get("X-Linked-ETag", ""))
                if response.status_code not in _REDIRECTS:
                    _refuse_trouble(response)
                    yield Answer(response, linked)
                    return
                here = next_hop(start, here, response.headers.get("Location", ""))
        raise FetchError(f"{start.host}: more than {_MAX_REDIRECTS} redirects")

    @contextmanager
    def _send(self, url: httpx.URL, headers: dict[str, str]) -> Iterator[httpx.Response]:
        sent = dict(headers)
        if self._token and _origin(url) == _origin(self._endpoint):
            sent["Authorization"] = f"Bearer {self._token}"
        try:
            response = self._http.send(self._http.build_request("GET", url, headers=sent), stream=True)
            try:
                yield response
            finally:
                response.close()
        except httpx.TransportError as error:
            raise _translated(url.host, error, self.patience) from None
        except UnicodeError:
            raise FetchError(f"{shown(url.host)}: no host can have this name") from None
        except httpx.InvalidURL:
            # httpx looks at a redirect's target even when it is told not to follow
            raise FetchError(f"{url.host}: a redirect that cannot be followed") from None


def location_host(url: str, name: str) -> str:
    """Host and port of a URL as a folder's name. Raises FetchError, naming the URL as `name`."""
    parsed = _parse(url, name)
    host = parsed.host if parsed.port is None else f"{parsed.host}_{parsed.port}"
    folder = host.replace(":", "_")
    if not is_safe_path(folder):
        raise FetchError(f"{name}: {shown(host)!r} is no host")
    return folder


def _parse(url: str, name: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not _is_host(parsed.host):
        raise FetchError(f"{name}: expected http:// or https:// and a host, got {_without_secrets(url)!r}")
    return parsed


def next_hop(start: httpx.URL, here: httpx.URL, location: str) -> httpx.URL:
    """Where a redirect leads. Raises FetchError where that is not on the web, or loses the start's https."""
    try:
        there = here.join(location)
    except (httpx.InvalidURL, ValueError):
        there = httpx.URL("")
    if not location or there.scheme not in ("http", "https") or not _is_host(there.host):
        raise FetchError(f"{here.host}: a redirect to {_without_secrets(location)!r} cannot be followed")
    if there.scheme == "http" and start.scheme == "https":
        raise FetchError(f"{here.host}: refused a redirect from https to unprotected http at {there.host}")
    return there


def _is_host(host: str) -> bool:
    """Whether a name can be looked up; what cannot be part of one comes percent-encoded."""
    return bool(host) and "%" not in host


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _refuse_trouble(response: httpx.Response) -> None:
    if response.status_code in _WORTH_A_RETRY:
        wait = response.headers.get("Retry-After", "")
        reason = f"{response.url.host}: the server answered {response.status_code}"
        raise Interrupted(reason, float(wait) if wait.isascii() and wait.isdigit() else 0.0)


def _translated(host: str, error: httpx.TransportError, patience: Patience) -> Exception:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return FetchError(f"{host}: its certificate is not trusted ({cause.verify_message})")
        cause = cause.__cause__ or cause.__context__
    match error:
        case httpx.ConnectTimeout():
            return Interrupted(f"{host}: no connection within {patience.connect:g} s")
        case httpx.TimeoutException():
            return Interrupted(f"{host}: nothing came for {patience.read:g} s")
        case httpx.ConnectError():
            why = re.sub(r"^\[Errno -?\d+\] ", "", shown(str(error)))
            return Interrupted(f"{host}: cannot connect ({why or 'no reason given'})")
        case httpx.ProxyError():
            return Interrupted(f"{host}: the proxy refused ({shown(str(error))})")
        case httpx.UnsupportedProtocol():
            return FetchError(f"{host}: {shown(str(error))}")
    return Interrupted(f"{host}: the connection was lost")


def _sha256_in(etag: str) -> str:
    text = etag.strip('"').lower()
    return text if len(text) == 64 and set(text) <= _HEX else ""


def _without_secrets(url: str) -> str:
    """A URL for a message: without a password and without a query, which may be a signature."""
    scheme, mark, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    plain = f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}" if mark else url
    return shown(plain.partition("?")[0])
