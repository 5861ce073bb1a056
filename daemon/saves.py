"""What the daemon asks of persistent memory; `daemon.memory_bridge` implements it over the store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from daemon.engine_client import EngineClient
from runtime.engine.commands import EraseSlot, ForgetText, SlotErased, TextForgotten
from runtime.engine.messages import Tokens
from runtime.engine.port import MemoryPort
from runtime.memory.prefix import Render


class SaveError(Exception):
    """A save, restore or erase that could not be done; the slot is as it was."""


class UnknownSave(SaveError):
    """No save of that name exists."""


class SaveExists(SaveError):
    """The new name belongs to another save."""


class ForeignSave(SaveError):
    """The save belongs to another model or configuration; `field` names the difference."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class DamagedSave(SaveError):
    """The save exists and cannot be read, or does not fit the slot."""


class EmptySlot(SaveError):
    """There is nothing to be saved."""


class SavesUnavailable(SaveError):
    """There is nowhere to save to: the store is off or degraded."""


class SavesNotYet(SavesUnavailable):
    """The same may well succeed in a moment."""


@dataclass(frozen=True, slots=True)
class SaveResult:
    """`n_tokens` were saved in `n_bytes`, of which `bytes_shared` were in the store already."""

    n_tokens: int
    n_bytes: int
    bytes_shared: int = 0
    n_resumable: int = 0


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """`n_tokens` are in the slot again, read from `n_bytes`."""

    n_tokens: int
    n_bytes: int
    n_resumable: int = 0


@dataclass(frozen=True, slots=True)
class SavedPrompt:
    """A named save as listed. `created` is Unix time in seconds, `model` the name it was saved under."""

    name: str
    n_bytes: int
    created: float
    n_tokens: int
    model: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What a text left behind and is gone now: blocks in RAM, blocks in the store and their bytes."""

    n_blocks_ram: int
    n_blocks: int = 0
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """`status` is ``ok``, ``degraded`` or ``off``; `reason` says why it is not ok."""

    status: str
    reason: str = ""


class Saves(Protocol):
    """Named saves of slots and the state of the store.

    The three coroutines wait until the slot is free, raise a `SaveError`, and may be cancelled: the slot then
    holds either its old or its new content.
    """

    async def save(self, id_slot: int, name: str) -> SaveResult: ...

    async def restore(self, id_slot: int, name: str) -> RestoreResult: ...

    async def erase(self, id_slot: int) -> int:
        """Clear the slot and return how many tokens it held."""

    async def saved(self) -> list[SavedPrompt]:
        """All named saves, whatever model they are of."""

    async def saved_tokens(self, name: str) -> Tokens: ...

    async def delete(self, name: str) -> None: ...

    async def rename(self, old: str, new: str) -> None: ...

    async def forget(self, text: bytes, render: Render) -> Forgotten:
        """Forget all that begins with `text`, which `render` gives of tokens; named saves keep theirs.

        Waits until no request with that text runs. Raises SaveError when the store could not forget it.
        """

    def health(self) -> StoreHealth: ...

    def statistics(self) -> Mapping[str, int | float | str]:
        """Figures for ``GET /store`` and for the metrics ``emberd:store_*``; empty when the store is off."""


class Memory(Saves, Protocol):
    """Persistent memory of one loaded model, for the whole life of its engine."""

    @property
    def port(self) -> MemoryPort | None:
        """What the engine is built with; None when nothing is remembered."""

    @property
    def root(self) -> bytes:
        """Root of the chain of every prefix: the identity of model, memory layout and numerics."""

    async def run(self) -> None:
        """What the memory does in the background, until cancelled."""

    async def close(self) -> None:
        """Write what is queued, within the deadline of the caller's scope, and close. Never raises."""


class NoMemory:
    """No store, by ``--store off`` or for the given reason: slots can be erased; nothing is saved."""

    port = None
    root = b""

    def __init__(self, client: EngineClient, reason: str = "start emberd with --store on") -> None:
        self._client = client
        self._reason = reason

    async def run(self) -> None:
        return

    async def save(self, id_slot: int, name: str) -> SaveResult:
        raise SavesUnavailable(f"The store is off: {self._reason}")

    async def restore(self, id_slot: int, name: str) -> RestoreResult:
        raise SavesUnavailable(f"The store is off: {self._reason}")

    async def erase(self, id_slot: int) -> int:
        return await erase_slot(self._client, id_slot)

    async def saved(self) -> list[SavedPrompt]:
        return []

    async def saved_tokens(self, name: str) -> Tokens:
        raise UnknownSave(f"no save is named {name!r}")

    async def delete(self, name: str) -> None:
        raise UnknownSave(f"no save is named {name!r}")

    async def rename(self, old: str, new: str) -> None:
        raise UnknownSave(f"no save is named {old!r}")

    async def forget(self, text: bytes, render: Render) -> Forgotten:
        return Forgotten(await forget_in_ram(self._client, self.root, text, render))

    def health(self) -> StoreHealth:
        return StoreHealth("off", self._reason)

    def statistics(self) -> Mapping[str, int | float | str]:
        return {}

    async def close(self) -> None:
        return


async def erase_slot(client: EngineClient, id_slot: int) -> int:
    """Clear a slot when it is idle; the number of tokens it held. Raises SaveError."""
    answer = await client.ask(lambda ticket: EraseSlot(ticket, id_slot))
    if not isinstance(answer, SlotErased):
        raise SaveError(f"unexpected answer {type(answer).__name__}")
    if answer.error is not None:
        raise SaveError(str(answer.error))
    return answer.n_erased


async def forget_in_ram(client: EngineClient, root: bytes, text: bytes, render: Render) -> int:
    """Forget all that begins with `text` in slots and blocks; how many blocks went. Raises SaveError."""
    answer = await client.ask(lambda ticket: ForgetText(ticket, root, text, render))
    if not isinstance(answer, TextForgotten) or answer.error is not None:
        raise SaveError(str(getattr(answer, "error", "the engine gave no answer")))
    return answer.n_blocks
