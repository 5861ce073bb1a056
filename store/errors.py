"""What the store can refuse, as types; each message is one line a user can act on."""

from pathlib import Path


class StoreError(Exception):
    """Base of every error that the store raises on purpose."""


class StoreUnusable(StoreError):
    """The directory cannot hold a store: wrong file system, no permission, made by a newer version."""


class StoreBusy(StoreError):
    """Another process owns the store. `pid` is 0 and `since` empty when the owner left no readable note."""

    def __init__(self, path: Path, pid: int, since: str) -> None:
        owner = f"process {pid}, running since {since}" if pid else "another process"
        super().__init__(f"the store {path} is in use by {owner}")
        self.pid = pid
        self.since = since


class StoreClosed(StoreError):
    """The store was closed, or belongs to the parent process of a fork."""


class WriteRefused(StoreError):
    """A save or another change could not be committed; the message says why."""


class InvalidName(StoreError):
    """The name of a save breaks the rules of `store.names`."""


class UnknownName(StoreError):
    """No save has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no save is named {name!r}")


class NameTaken(StoreError):
    """A save of this name exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a save named {name!r} exists already")


class FingerprintMismatch(StoreError):
    """A save was made by another model or other settings. `fields` are the fingerprint fields that differ."""

    def __init__(self, name: str, fields: tuple[str, ...]) -> None:
        super().__init__(f"the save {name!r} was made with a different {', '.join(fields) or 'model'}")
        self.fields = fields


class Damaged(StoreError):
    """Stored bytes do not pass their checksum, or a record is not what it should be."""


class Gone(StoreError):
    """What a look-up found is not there any more, or not in the layout that is wanted."""
