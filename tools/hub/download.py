"""One file brought over HTTP: gone on with after an interruption, checked, never too large for the disk."""

import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.cache import sha256_of
from tools.errors import FetchError
from tools.hub.client import Answer, Attempts, Client, Interrupted
from tools.hub.listing import refusal
from tools.hub.part import Origin, Part, read_note, write_note

_MAGIC = b"GGUF"
_RESERVE = 64 << 20
"""Bytes that stay free when a server does not say how much it will send."""
_WORTHWHILE = 64 << 10
"""Bytes that make an attempt count as a success."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told how it goes: lines for a person, and (label, bytes so far, bytes in all or None)."""

    say: Callable[[str], None]
    progress: Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to be had as `path`. `size` (bytes) is None and `sha256` (hex) "" while nobody has said them.

    `subject` names it in messages, `terms` is the page where access to it can be asked for.
    """

    url: str
    path: Path
    subject: str
    terms: str
    size: int | None = None
    sha256: str = ""

    @property
    def source(self) -> str:
        return hashlib.sha256(self.url.encode()).hexdigest()


def is_here(wanted: Wanted) -> bool:
    """Whether the finished file has the wanted size and digest. It is read only when it changed since the
    last check. False when neither is known: then only the server can tell."""
    try:
        found = wanted.path.stat()
    except OSError:
        return False
    if wanted.size is None or not wanted.path.is_file() or found.st_size != wanted.size:
        return False
    if not wanted.sha256:
        return True
    note = read_note(wanted.path)
    if note is not None and (note.size, note.mtime_ns) == (found.st_size, found.st_mtime_ns):
        return note.sha256 == wanted.sha256
    digest = sha256_of(wanted.path)
    with suppress(OSError):
        # in a cache that cannot be written the file is read again next time
        write_note(wanted.path, Origin(wanted.source, "", found.st_size, digest, found.st_mtime_ns))
    return digest == wanted.sha256


def bring(client: Client, wanted: Wanted, watch: Watch) -> Origin | None:
    """Complete the partial download of `wanted` and check it; `tools.hub.part` says where it is.

    Returns its origin, or None when the finished file is the one that the server has. Raises FetchError,
    OSError. What is known to be wrong is removed; what merely stopped is kept for the next call.
    """
    while True:
        with Part(wanted.path) as part:
            _keep_only_what_belongs(part, wanted)
            kept = part.size
            if not _receive(client, wanted, part, watch):
                part.discard()
                return None
            origin = part.origin or Origin(wanted.source)
            expected = wanted.sha256 or origin.sha256
            if expected and part.sha256 != expected:
                part.discard()
                if kept:
                    watch.say(f"{wanted.subject}: what was here does not fit what came; starting over")
                    continue
                raise FetchError(f"{wanted.subject}: checksum mismatch: its SHA-256 is not the hub's")
            if part.magic != _MAGIC:
                part.discard()
                raise FetchError(f"{wanted.subject}: not a GGUF file (it begins with {part.magic!r})")
            return Origin(wanted.source, origin.etag, part.size, part.sha256)


def require_room(folder: Path, needed: int, subject: str) -> None:
    """Raises FetchError when `needed` bytes do not fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise FetchError(
            f"{subject}: {_gigabytes(needed)} are missing and {folder} has room for {_gigabytes(free)}"
        )


def _keep_only_what_belongs(part: Part, wanted: Wanted) -> None:
    """The digest, where it is known, says whether the bytes here are of the wanted file; else the server
    decides by its ETag when it is asked to go on."""
    note = part.origin
    if note is None or (wanted.size is not None and part.size > wanted.size):
        part.restart()
    elif wanted.sha256:
        if note.sha256 != wanted.sha256:
            part.restart()
    elif note.source != wanted.source or (wanted.size is not None and note.size != wanted.size):
        part.restart()


def _receive(client: Client, wanted: Wanted, part: Part, watch: Watch) -> bool:
    """Append what is missing, over as many connections as it takes. False when the finished file will do."""
    attempts = Attempts(client.patience, watch.say)
    watch.progress(part.final.name, part.size, wanted.size)
    furthest = part.size
    while wanted.size is None or part.size < wanted.size:
        try:
            with client.get(wanted.url, _headers(part, wanted)) as answer:
                if _is_finished_file(answer, wanted):
                    return False
                if answer.status == 416 and part.origin is not None and part.size == part.origin.size:
                    return True
                total = _begin(client, answer, wanted, part)
                _copy(client, answer, part, total, watch)
            if total is not None and part.size < total:
                raise Interrupted(f"{answer.host}: the connection ended early")
            return True
        except Interrupted as error:
            if part.size - furthest >= _WORTHWHILE:
                furthest = part.size
                attempts.succeed()
            attempts.fail(_with_sizes(error, wanted, part))
    return True


def _headers(part: Part, wanted: Wanted) -> dict[str, str]:
    etag = part.origin.etag if part.origin is not None else ""
    if part.size and (wanted.sha256 or _is_strong(etag)):
        headers = {"Range": f"bytes={part.size}-"}
        # The digest is the stronger promise: a mirror of the same bytes may have another ETag.
        return headers if wanted.sha256 else headers | {"If-Range": etag}
    if part.size:
        part.restart()
    finished = _finished(wanted)
    if finished is None or not _can_be_sent(finished.etag):
        return {}
    return {"If-None-Match": finished.etag}


def _finished(wanted: Wanted) -> Origin | None:
    """What is known of the finished file, where only the server can tell whether it is current."""
    note = read_note(wanted.path)
    if wanted.sha256 or note is None or note.source != wanted.source or not wanted.path.is_file():
        return None
    found = wanted.path.stat()
    return note if (note.size, note.mtime_ns) == (found.st_size, found.st_mtime_ns) else None


def _is_finished_file(answer: Answer, wanted: Wanted) -> bool:
    """Whether the server has what the finished file holds, as far as one without ETags can tell."""
    note = _finished(wanted)
    if note is None or answer.status not in (200, 304):
        return False
    if answer.status == 304:
        return True
    if answer.linked_sha256:
        return answer.linked_sha256 == note.sha256
    return answer.header("ETag") == note.etag and _length(answer) == note.size


def _begin(client: Client, answer: Answer, wanted: Wanted, part: Part) -> int | None:
    """Bring the part to where the answer goes on, note its origin, and return the whole file's size."""
    if answer.status == 416:
        part.restart()
        raise Interrupted(f"{answer.host}: the server cannot go on where it stopped")
    if answer.status not in (200, 206):
        raise refusal(client, answer, wanted.subject, wanted.terms)
    if answer.header("Content-Encoding") not in ("", "identity"):
        raise FetchError(f"{wanted.subject}: {answer.host} sends it compressed, unasked")
    if answer.status == 206:
        start, total = _content_range(answer)
        if start != part.size:
            part.restart()
            raise Interrupted(f"{answer.host}: the server went on at another place")
    else:
        part.restart()
        total = _length(answer)
    if wanted.size is not None and total not in (None, wanted.size):
        raise FetchError(
            f"{wanted.subject}: the hub lists {wanted.size} bytes, but {answer.host} has {total}: try again"
        )
    total = wanted.size if total is None else total
    part.belongs_to(
        Origin(wanted.source, answer.header("ETag"), total, wanted.sha256 or answer.linked_sha256)
    )
    require_room(part.path.parent, (total or 0) - part.size, wanted.subject)
    return total


def _copy(client: Client, answer: Answer, part: Part, total: int | None, watch: Watch) -> None:
    limit = total
    if limit is None:
        limit = part.size + max(0, shutil.disk_usage(part.path.parent).free - _RESERVE)
    for chunk in _not_too_slow(client, answer):
        if part.size + len(chunk) > limit:
            part.discard()
            raise FetchError(
                f"{answer.host}: sends more than the {total} bytes that were expected"
                if total is not None
                else f"{answer.host}: stopped at {_gigabytes(part.size)}, the disk is nearly full"
            )
        part.append(chunk)
        watch.progress(part.final.name, part.size, total)


def _not_too_slow(client: Client, answer: Answer) -> Iterator[bytes]:
    """The body; a connection that drips is as good as lost."""
    patience = client.patience
    since, got = time.monotonic(), 0
    for chunk in answer.response.iter_raw():
        yield chunk
        got += len(chunk)
        if time.monotonic() - since > patience.window:
            if got < patience.slowest:
                raise Interrupted(f"{answer.host}: only {got} bytes came in {patience.window:g} s")
            since, got = time.monotonic(), 0


def _with_sizes(error: Interrupted, wanted: Wanted, part: Part) -> Interrupted:
    total = wanted.size if wanted.size is not None else part.origin and part.origin.size
    if not part.size or total is None:
        return Interrupted(f"{wanted.subject}: {error}", error.wait)
    return Interrupted(f"{wanted.subject}: {error} after {part.size} of {total} bytes", error.wait)


def _content_range(answer: Answer) -> tuple[int, int | None]:
    """First byte and whole size of a partial answer; (-1, None) when it does not say."""
    match = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", answer.header("Content-Range"), re.ASCII)
    if match is None:
        return -1, None
    return int(match[1]), None if match[2] == "*" else int(match[2])


def _length(answer: Answer) -> int | None:
    text = answer.header("Content-Length")
    return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else None


def _is_strong(etag: str) -> bool:
    return etag.startswith('"') and _can_be_sent(etag)


def _can_be_sent(etag: str) -> bool:
    return len(etag) > 2 and etag.isascii() and etag.isprintable()


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
