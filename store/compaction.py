"""Writing the whole store anew, so that freed pages return to the disk and deleted text is really gone.

LMDB's own compacting copy keeps pages as they are, with remains of deleted records in their gaps. Copying
record by record into a new file leaves nothing behind but what is reachable.
"""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import lmdb

from store.environment import Environment, Txn
from store.lockfile import OwnerLock
from store.opening import SCRATCH, open_beside

_BATCH_BYTES = 16 << 20


def compact_store(state_directory: Path) -> tuple[int, int]:
    """Replace the data file of a store that nobody has open; return its sizes before and after in bytes.

    Needs free space for a second copy of what is live. Files set aside as unusable are removed as well, since
    they hold text too. Raises `StoreBusy`, `StoreUnusable`, `Damaged`, or OSError and `lmdb.Error` when the
    disk is full; the store is as it was then.
    """
    directory = state_directory / "store"
    open_beside(directory).close(0)
    lock = OwnerLock(directory)
    done = False
    try:
        sizes = _compact(directory)
        done = True
        return sizes
    finally:
        lock.release(clean=done or lock.was_clean)


def _compact(directory: Path) -> tuple[int, int]:
    before = (directory / "data.mdb").stat().st_size
    fresh = directory / SCRATCH
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        with ExitStack() as opened:
            old = Environment(directory, read_only=True)
            opened.callback(old.close, 0)
            new = Environment(fresh, create=True, budget_bytes=before)
            opened.callback(new.close, 0)
            for name in Environment.TABLES:
                _copy_table(old, new, name)
            new.sync()
        (fresh / "data.mdb").replace(directory / "data.mdb")
        (directory / "lock.mdb").unlink(missing_ok=True)
        _sync_directory(directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(directory / "quarantine", ignore_errors=True)
    return before, (directory / "data.mdb").stat().st_size


def _copy_table(old: Environment, new: Environment, name: str) -> None:
    """Copy one table in key order, in transactions of bounded size on both sides."""
    position: tuple[bytes, bytes] | None = None
    source, target = getattr(old, name), getattr(new, name)
    if source is None:
        return

    def step(reading: Txn, writing: Txn) -> tuple[bytes, bytes] | None:
        cursor = reading.cursor(db=source)
        if position is None:
            found = cursor.first()
        else:
            found = _after(cursor, position, name in Environment.WITH_DUPLICATES)
        copied = 0
        while found:
            key, value = cursor.item()
            writing.put(key, value, db=target)
            copied += len(key) + len(value)
            if copied >= _BATCH_BYTES:
                return bytes(key), bytes(value) if name in Environment.WITH_DUPLICATES else b""
            found = cursor.next()
        return None

    while True:
        position = new.write(lambda writing: old.read(lambda reading: step(reading, writing)))
        if position is None:
            return


def _after(cursor: "lmdb.Cursor[memoryview]", position: tuple[bytes, bytes], has_duplicates: bool) -> bool:
    key, value = position
    found = cursor.set_key_dup(key, value) if has_duplicates else cursor.set_key(key)
    return found and cursor.next()


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
