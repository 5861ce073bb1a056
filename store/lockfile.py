"""Who may write: one process, told apart by a lock on `owner.lock`, and whether the last one stopped cleanly.

LMDB itself lets a second process write without complaint. The lock file also carries a note: who runs, and
after a clean stop the data file's size and time, so that a file changed by anybody else is looked at before
use.
"""

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from store.errors import StoreBusy, StoreUnusable


def _stamp(data: Path) -> list[int]:
    try:
        status = data.stat()
    except FileNotFoundError:
        return []
    return [status.st_size, status.st_mtime_ns]


class OwnerLock:
    """The exclusive right to write in a store's directory, held until `release`."""

    def __init__(self, directory: Path) -> None:
        """Raises `StoreBusy` when another process holds it, `StoreUnusable` when it cannot be taken."""
        self._path = directory / "owner.lock"
        self._data = directory / "data.mdb"
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnusable(f"cannot write in {directory}: {error.strerror}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note = self._read()
            os.close(self._fd)
            raise StoreBusy(directory, int(note.get("pid", 0)), str(note.get("since", ""))) from None
        note = self._read()
        self.was_clean = note.get("clean") == _stamp(self._data) and bool(note.get("clean"))
        self._note(clean=[])

    def is_in_place(self) -> bool:
        """False when the lock file was removed, so that another process could take a new one."""
        try:
            here, held = self._path.stat(), os.fstat(self._fd)
        except OSError:
            return False
        return (here.st_dev, here.st_ino) == (held.st_dev, held.st_ino)

    def _read(self) -> dict[str, Any]:
        try:
            note = json.loads(os.pread(self._fd, 4096, 0))
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _note(self, clean: list[int]) -> None:
        """On a full disk the old note stays; its stamp is out of date as soon as anything is written."""
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        text = json.dumps({"pid": os.getpid(), "since": since, "clean": clean})
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, text.ljust(256).encode(), 0)
            os.fsync(self._fd)

    def release(self, *, clean: bool) -> None:
        """Give the lock up; `clean` says that everything accepted is in the data file. Idempotent."""
        if self._fd < 0:
            return
        if clean:
            self._note(clean=_stamp(self._data))
        self.abandon()

    def abandon(self) -> None:
        """Close the file only: in a forked child the parent's lock must stay as it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
