"""The bytes of a file that have arrived so far, and the notes that say what they belong to."""

import hashlib
import os
from pathlib import Path
from typing import Self

import msgspec

_READ_BYTES = 1 << 20


class Origin(msgspec.Struct, frozen=True):
    """Where bytes came from. `source` stands for the URL, which may hold a password. `size` is the whole
    file's, None if the server did not say; `sha256` is the one they must have (of a partial download) or do
    have (of a finished one), "" if unknown. `mtime_ns` is the finished file's when it was checked."""

    source: str
    etag: str = ""
    size: int | None = None
    sha256: str = ""
    mtime_ns: int = 0


def note_path(path: Path) -> Path:
    """Where the origin of `path` is noted. File names of repositories never begin with a dot."""
    return path.with_name(f".{path.name}.origin")


def read_note(path: Path) -> Origin | None:
    """What is noted about `path`, None when there is nothing that can be read."""
    try:
        return msgspec.json.decode(note_path(path).read_bytes(), type=Origin)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_note(path: Path, origin: Origin) -> None:
    """Note the origin of `path`; a reader sees the old note or the new one."""
    note = note_path(path)
    draft = note.with_name(f"{note.name}.new")
    draft.write_bytes(msgspec.json.encode(origin))
    draft.replace(note)


class Part:
    """A partial download, open for appending. Use as a context manager, one process at a time.

    `size` is the number of bytes here and `sha256` their digest so far; `origin` is what they belong to.
    """

    def __init__(self, final: Path) -> None:
        self.final = final
        self.path = part_path(final)
        self.origin = read_note(self.path)
        self.size = 0
        self._digest = hashlib.sha256()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self.path, flags, 0o666), "r+b", buffering=0)

    def __enter__(self) -> Self:
        while chunk := self._file.read(_READ_BYTES):
            self._digest.update(chunk)
            self.size += len(chunk)
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def magic(self) -> bytes:
        return os.pread(self._file.fileno(), 4, 0)

    def append(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]
        self._digest.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        """Forget every byte."""
        self._file.truncate(0)
        self._file.seek(0)
        self.size = 0
        self._digest = hashlib.sha256()

    def belongs_to(self, origin: Origin) -> None:
        """Note what the bytes here and those to come are of."""
        if origin != self.origin:
            write_note(self.path, origin)
            self.origin = origin

    def discard(self) -> None:
        """Remove it: these are not the expected bytes."""
        self.path.unlink(missing_ok=True)
        note_path(self.path).unlink(missing_ok=True)


def part_path(final: Path) -> Path:
    """Where the bytes of `final` are gathered."""
    return final.with_name(f".{final.name}.part")
