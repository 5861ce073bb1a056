"""Being the owner of a directory: taking it, opening what is in it, and getting it back after trouble."""

from pathlib import Path

from store import opening
from store.environment import Environment
from store.lockfile import OwnerLock


class Ownership:
    """The lock of a store's directory and the data file it stands for."""

    def __init__(self, directory: Path, allow_network: bool) -> None:
        """Raises `StoreBusy` or `StoreUnusable`."""
        self._directory = directory
        self._allow_network = allow_network
        opening.prepare_directory(directory, allow_network=allow_network)
        self._lock = OwnerLock(directory)
        self._identity = (0, 0)

    def open(self, budget_bytes: int) -> tuple[Environment, int]:
        """The environment, and how often it had to be repaired (0 or more)."""

        def attach(create: bool) -> Environment:
            return Environment(self._directory, create=create, budget_bytes=budget_bytes)

        opened = opening.open_owned(self._directory, attach, trusted=self._lock.was_clean)
        self._identity = self._file_identity()
        return opened

    def recover(self, environment: Environment) -> int:
        """Open the environment anew after a failed write, after which LMDB may refuse everything.

        The directory, its lock or the file may be gone or replaced by now. Returns how often something had to
        be repaired; raises `StoreError` or OSError while the cause persists.
        """
        opening.prepare_directory(self._directory, allow_network=self._allow_network)
        if self._lock.is_in_place():
            trusted = self._file_identity() == self._identity
        else:
            self._lock.abandon()
            self._lock = OwnerLock(self._directory)
            trusted = self._lock.was_clean

        def attach(create: bool) -> Environment:
            environment.reopen(create)
            return environment

        _, repairs = opening.open_owned(self._directory, attach, trusted=trusted)
        self._identity = self._file_identity()
        return repairs

    def let_go(self, environment: Environment) -> None:
        """Close the file and the lock: a broken file system has to be unmounted before it can be used again.

        `recover` takes both anew. A reader that does not leave keeps them.
        """
        if environment.close(1.0):
            self._lock.abandon()

    def replace(self, environment: Environment, why: str) -> None:
        """Set a corrupt file aside and go on with an empty one; raises `StoreError` or OSError."""
        opening.set_aside(self._directory, why)
        environment.reopen(create=True)
        self._identity = self._file_identity()

    def is_in_place(self) -> bool:
        """False when the data file was removed or replaced: what is written would be lost."""
        return self._file_identity() == self._identity

    def _file_identity(self) -> tuple[int, int]:
        try:
            status = (self._directory / "data.mdb").stat()
        except OSError:
            return (0, 0)
        return status.st_dev, status.st_ino

    def release(self, *, clean: bool) -> None:
        self._lock.release(clean=clean and self.is_in_place())

    def abandon(self) -> None:
        self._lock.abandon()
