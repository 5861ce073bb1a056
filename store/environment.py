"""The one LMDB environment and the only two ways into it: `read` and `write`.

Three measured facts shape this file. A write transaction belongs to the thread that began it, and nothing
says so until the next one hangs for ever: begin, puts and commit lie within one call, on one thread. A view
into the map kills the process when it outlives the map: functions passed to `read` and `write` return plain
data. A reader left open stops the reuse of pages: calls are short, and their age is watched.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import lmdb

from store.errors import Damaged, StoreClosed, StoreError, StoreUnusable
from store.records import seal, unseal
from store.schema import SCHEMA, SINCE, STEPS

_GIB = 1 << 30
_READERS_BYTES = 8192
_MEMO_RECORDS = 1024
T = TypeVar("T")
Txn: TypeAlias = "lmdb.Transaction[memoryview]"


class Environment:
    """LMDB with its named databases as attributes.

    meta   "schema", "ledger", and "fp:" with a fingerprint id: the record of the fingerprint
    idx    block id: `records.BlockRecord`
    pnt    place and id of a point: `records.PointRecord`, see `points`; None for an old file only read
    dat    "B", id of a block or point, segment number, part number: up to 1,048,560 raw bytes
    kid    where look-ups search below a block: see `branches`
    use    id of a block or point: `records.Usage`
    lru    the order of eviction: u64 time, id of a block or point; empty values
    man    name of a save: `records.ManifestRecord`
    qua    id of a block or point, u64 time: what failed verification, and why
    wid    stat tuple of a file: its content digest
    """

    TABLES = ("meta", "idx", "dat", "kid", "use", "lru", "man", "qua", "wid", "pnt")
    WITH_DUPLICATES = frozenset(("kid",))

    meta: lmdb._Database
    idx: lmdb._Database
    dat: lmdb._Database
    kid: lmdb._Database
    use: lmdb._Database
    lru: lmdb._Database
    man: lmdb._Database
    qua: lmdb._Database
    wid: lmdb._Database
    pnt: lmdb._Database | None = None

    def __init__(
        self, directory: Path, *, create: bool = False, read_only: bool = False, budget_bytes: int = 0
    ) -> None:
        """Open the tables, or create them when `create` says that there is nothing yet.

        Raises `StoreUnusable` or `lmdb.Error`. An existing store is never completed silently: a lost table is
        an error, not a new empty table. The map is far larger than the budget, which costs nothing, and
        changing it later would be fatal to views.
        """
        self.directory = directory
        self._map_bytes = min(max(8 * budget_bytes, 16 * _GIB), 1024 * _GIB)
        self._read_only = read_only
        self._gate = threading.Condition()
        self._readers: dict[int, float] = {}
        self._next_reader = 0
        self._closed = False
        self._poisoned = False
        self._writer: threading.Thread | None = None
        self._memo: tuple[tuple[int, int], dict[bytes, Any]] = (0, 0), {}
        self.n_attached = 0
        """How many times the file was mapped: addresses are of one time only."""
        self._attach(create)

    def _attach(self, create: bool) -> None:
        self.pnt = None
        self.n_attached += 1
        self._reserve_readers()
        try:
            self._env = lmdb.open(
                str(self.directory),
                map_size=self._map_bytes,
                readonly=self._read_only,
                create=create,
                mode=0o600,
                metasync=False,
                readahead=True,
                max_dbs=16,
                max_readers=64,
                lib_version=0,
            )
        except (lmdb.CorruptedError, lmdb.InvalidError) as error:
            raise Damaged(f"{self.directory}: {error}") from None
        except lmdb.Error as error:
            raise StoreUnusable(f"cannot open the store {self.directory}: {error}") from None
        try:
            if create:
                self._create_tables()
            else:
                version = self._read_schema()
                self._open_tables(version)
                if not self._read_only:
                    self._upgrade(version)
        except lmdb.Error as error:
            self._env.close()
            kind = StoreUnusable if create else Damaged
            raise kind(f"cannot read the store {self.directory}: {error}") from None
        except BaseException:
            self._env.close()
            raise

    def _reserve_readers(self) -> None:
        """Have disk for a new table of readers, or raise `StoreUnusable`.

        LMDB makes it a sparse file and writes to it through a map, which kills the process on a full disk.
        One that has disk may be in use: it is not even opened, because closing it would drop its locks.
        """
        allocate = getattr(os, "posix_fallocate", None)
        if allocate is None:
            return
        table = self.directory / "lock.mdb"
        with contextlib.suppress(FileNotFoundError):
            if table.stat().st_blocks:
                return
        try:
            fd = os.open(table, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # LMDB does without on a disk that is read-only, and says what is wrong otherwise
        try:
            allocate(fd, 0, _READERS_BYTES)
        except OSError as error:
            table.unlink(missing_ok=True)
            raise StoreUnusable(f"cannot open the store {self.directory}: {error.strerror}") from None
        finally:
            os.close(fd)

    def _create_tables(self) -> None:
        """All tables and the schema record in one transaction: a store exists whole or not at all."""
        with self._env.begin(write=True, buffers=True) as txn:
            for name in self.TABLES:
                self.create_table(name, txn)
            schema = (SCHEMA, int(time.time() * 1000))
            txn.put(b"schema", seal(b"schema", schema), db=self.meta)

    def create_table(self, name: str, txn: Txn) -> None:
        """Make a table that is not there yet, for this file's and `store.schema`'s use."""
        twice = name in self.WITH_DUPLICATES
        setattr(self, name, self._env.open_db(name.encode(), txn, dupsort=twice, dupfixed=twice))

    def _open_tables(self, version: int) -> None:
        for name in self.TABLES:
            if SINCE.get(name, 1) <= version:
                self._open_table(name)

    def _open_table(self, name: str) -> None:
        twice = name in self.WITH_DUPLICATES
        try:
            table = self._env.open_db(name.encode(), create=False, dupsort=twice, dupfixed=twice)
        except lmdb.NotFoundError:
            raise Damaged(f"the store {self.directory} has lost its table {name}") from None
        setattr(self, name, table)

    def _read_schema(self) -> int:
        self._open_table("meta")
        with self._env.begin(buffers=True) as txn:
            value = txn.get(b"schema", db=self.meta)
            if value is None:
                raise Damaged(f"the store {self.directory} has no schema record")
            version = unseal(b"schema", value)[0]
        if not isinstance(version, int) or version < 1:
            raise Damaged(f"the store {self.directory} has the schema {version!r}")
        if version > SCHEMA:
            raise StoreUnusable(
                f"the store {self.directory} was made by a newer emberd "
                f"(schema {version}, this one knows {SCHEMA})"
            )
        return version

    def _upgrade(self, version: int) -> None:
        """Step by step; after a crash the file is of one version or the next, whole."""
        try:
            for step in range(version, SCHEMA):
                with self._env.begin(write=True, buffers=True) as txn:
                    STEPS[step](self, txn)
                    schema = (step + 1, int(time.time() * 1000))
                    txn.put(b"schema", seal(b"schema", schema), db=self.meta)
        except lmdb.Error as error:
            raise StoreUnusable(f"cannot upgrade the store {self.directory}: {error}") from None

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

    def memo(self, txn: Txn) -> dict[bytes, Any]:
        """What was decoded of the state that the read transaction `txn` sees, by key, to be added to.

        A commit makes another state. Finding a prefix and copying it out are two transactions; most often
        of one state.
        """
        state = self.n_attached, txn.id()
        known, memo = self._memo
        if known != state or len(memo) > _MEMO_RECORDS:
            memo = {}
            self._memo = state, memo
        return memo

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

    @property
    def data_file(self) -> Path:
        return self.directory / "data.mdb"

    def file_bytes(self) -> int:
        """Size of the data file, 0 when it was removed."""
        try:
            return self.data_file.stat().st_size
        except OSError:
            return 0

    def used_bytes(self) -> int:
        """Where the last page in use ends; the file may go on. For the writer's thread."""
        return (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]

    def poison(self) -> None:
        """Refuse all further use without touching LMDB: a forked child would damage the file."""
        self._gate = threading.Condition()
        self._closed = self._poisoned = True

    def close(self, deadline: float) -> bool:
        """Wait up to `deadline` seconds for readers, then unmap; False when one stays inside."""
        with self._gate:
            self._closed = True
            if self._poisoned or not self._gate.wait_for(lambda: not self._readers, timeout=deadline):
                return False
        self._env.close()
        return True

    def reopen(self, create: bool, deadline: float = 5.0) -> None:
        """Let go of a file that cannot be written any more and map what is there now.

        Raises `StoreUnusable` or `Damaged`; the environment stays closed then, and can be reopened later.
        """
        if not self.close(deadline):
            raise StoreUnusable("a reader did not let go of the store")
        self._attach(create)
        with self._gate:
            self._closed = False
