"""Where downloads are kept, and how a finished file gets its name without anybody ever seeing half of it."""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs


def cache_folder(part: str) -> Path:
    """`$LLAMA_CACHE` itself, else the folder `part` in systemd's or in the user's cache folder."""
    if folder := os.environ.get("LLAMA_CACHE"):
        return Path(folder)
    if folders := os.environ.get("CACHE_DIRECTORY"):
        return Path(folders.split(":")[0]) / part
    return platformdirs.user_cache_path("emberd") / part


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Held by one process at a time; the kernel drops it when its holder dies, so it is never stale.

    `on_wait` is called before waiting for another holder.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666), "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def publish(part: Path, path: Path) -> None:
    """Give a finished file its name; both survive a power loss once this returns."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
