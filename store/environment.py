"""The one LMDB environment and the only two ways into it: `read` and `write`.

Three measured facts shape this file. A write transaction belongs to the thread that began it, and nothing
says so until the next one hangs for ever: begin, puts and commit lie within one call, on one thread. A view
into the map kills the process when it outlives the map: functions passed to `read` and `write` return plain
data. A reader left open stops the reuse of pages: calls are short, and their age is watched.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

import lmdb

from store.errors import Damaged, StoreClosed, StoreError, StoreUnusable
from store.records import seal, unseal

SCHEMA = 1
_TABLES = (b"idx", b"dat", b"kid", b"use", b"lru", b"man", b"qua", b"wid")
_GIB = 1 << 30
T = TypeVar("T")
Txn: TypeAlias = "lmdb.Transaction[memoryview]"


class Environment:
    """LMDB with its named databases as attributes; see store.md for the tables."""

    def __init__(
        self, directory: Path, *, create: bool = False, read_only: bool = False, budget_bytes: int = 0
    ) -> None:
        """Open the tables, or create them when `create` says that there is nothing yet.

        Raises `StoreUnusable` or `lmdb.Error`. An existing store is never completed silently: a lost table is
        an error, not a new empty table. The map is far larger than the budget, which costs nothing, and
        changing it later would be fatal to views.
        """
        try:
            self._env = lmdb.open(
                str(directory),
                map_size=min(max(8 * budget_bytes, 16 * _GIB), 1024 * _GIB),
                readonly=read_only,
                create=create,
                mode=0o600,
                metasync=False,
                readahead=True,
                max_dbs=16,
                max_readers=64,
                lib_version=0,
            )
        except lmdb.Error as error:
            raise StoreUnusable(f"cannot open the store {directory}: {error}") from None
        self.directory = directory
        self._gate = threading.Condition()
        self._readers: dict[int, float] = {}
        self._next_reader = 0
        self._closed = False
        self._writer: threading.Thread | None = None
        try:
            tables = self._create_tables() if create else self._open_tables()
            self._check_schema()
        except BaseException:
            self._env.close()
            raise
        self.idx, self.dat, self.kid = tables[b"idx"], tables[b"dat"], tables[b"kid"]
        self.use, self.lru, self.man = tables[b"use"], tables[b"lru"], tables[b"man"]
        self.qua, self.wid = tables[b"qua"], tables[b"wid"]

    def _create_tables(self) -> dict[bytes, lmdb._Database]:
        """All tables and the schema record in one transaction: a store exists whole or not at all."""
        with self._env.begin(write=True, buffers=True) as txn:
            tables = {
                name: self._env.open_db(name, txn, dupsort=name == b"kid", dupfixed=name == b"kid")
                for name in (b"meta", *_TABLES)
            }
            self.meta = tables[b"meta"]
            txn.put(b"schema", seal(b"schema", (SCHEMA, int(time.time() * 1000))), db=self.meta)
        return tables

    def _open_tables(self) -> dict[bytes, lmdb._Database]:
        tables = {}
        for name in (b"meta", *_TABLES):
            try:
                tables[name] = self._env.open_db(
                    name, create=False, dupsort=name == b"kid", dupfixed=name == b"kid"
                )
            except lmdb.NotFoundError:
                raise Damaged(f"the store {self.directory} has lost its table {name.decode()}") from None
        self.meta = tables[b"meta"]
        return tables

    def _check_schema(self) -> None:
        with self._env.begin(buffers=True) as txn:
            value = txn.get(b"schema", db=self.meta)
            if value is None:
                raise Damaged(f"the store {self.directory} has no schema record")
            version = unseal(b"schema", value)[0]
        if version > SCHEMA:
            raise StoreUnusable(
                f"the store {self.directory} was made by a newer emberd "
                f"(schema {version}, this one knows {SCHEMA})"
            )

    def bind_writer(self, thread: threading.Thread) -> None:
        """From now on only `thread` may call `write`."""
        self._writer = thread

    def read(self, call: Callable[[Txn], T]) -> T:
        """Run `call` in a read transaction, on any thread. Nothing it returns may refer to the map."""
        with self._gate:
            if self._closed:
                raise StoreClosed("the store is closed")
            ticket = self._next_reader = self._next_reader + 1
            self._readers[ticket] = time.monotonic()
        try:
            with self._env.begin(buffers=True) as txn:
                return call(txn)
        finally:
            with self._gate:
                del self._readers[ticket]
                self._gate.notify_all()

    def write(self, call: Callable[[Txn], T]) -> T:
        """Run `call` in a write transaction and commit it, all on this thread; an exception aborts it."""
        if self._writer is not None and self._writer is not threading.current_thread():
            raise StoreError("write transactions belong to the writer thread")
        if self._closed:
            raise StoreClosed("the store is closed")
        with self._env.begin(write=True, buffers=True) as txn:
            return call(txn)

    def sync(self) -> None:
        """Make every commit so far survive a power loss."""
        self._env.sync(True)

    def clear_stale_readers(self) -> int:
        """Free the reader slots of processes that were killed; return how many."""
        return self._env.reader_check()

    def oldest_reader_s(self) -> float:
        """Age in seconds of the oldest read transaction now open, 0 without one."""
        with self._gate:
            started = min(self._readers.values(), default=None)
        return 0.0 if started is None else time.monotonic() - started

    def file_bytes(self) -> int:
        """Size of the data file."""
        return (self.directory / "data.mdb").stat().st_size

    def poison(self) -> None:
        """Refuse all further use without touching LMDB: a forked child would damage the file."""
        self._closed = True
        self._gate = threading.Condition()

    def close(self, deadline: float) -> bool:
        """Wait up to `deadline` seconds for readers, then unmap; False when one stays inside."""
        with self._gate:
            self._closed = True
            if not self._gate.wait_for(lambda: not self._readers, timeout=deadline):
                return False
        self._env.close()
        return True
