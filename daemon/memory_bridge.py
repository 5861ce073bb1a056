"""What the event loop asks of the store: named saves, forgetting, health, closing.

Saves and restores of a slot go through the engine, which lends and takes blocks as with any request; what it
then asks of the store is in `memory_port`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import trio

from daemon.config import Config
from daemon.engine_client import EngineClient
from daemon.logs import logger
from daemon.memory_port import StorePort
from daemon.saves import (
    DamagedSave,
    EmptySlot,
    ForeignSave,
    Forgotten,
    RestoreResult,
    SavedPrompt,
    SaveError,
    SaveExists,
    SaveResult,
    SavesNotYet,
    SavesUnavailable,
    StoreHealth,
    UnknownSave,
    erase_slot,
    forget_in_ram,
)
from runtime.engine.commands import CaptureSlot, InstallPrefix, PrefixInstalled, SlotCaptured
from runtime.engine.messages import Tokens
from runtime.engine.port import MemoryPort, PrefixSnapshot
from runtime.errors import InvalidRequest
from runtime.kernels.summed_copy import SummedCopy
from runtime.memory.prefix import Render
from runtime.model import LoadedModel
from store import (
    MAX_POINTS,
    Damaged,
    FingerprintMismatch,
    InvalidName,
    NameTaken,
    Outcome,
    SaveAs,
    Saved,
    Store,
    StoreClosed,
    StoreError,
    UnknownName,
    WriteResult,
    figures,
)

T = TypeVar("T")

ROOT = b"model"
_PACE_MIB_S = 64.0  # while something decodes; unpaced writing costs a decode step up to a third (measured)
_PACE_SECONDS = 0.25
_SAVE_ATTEMPTS = 3
_SAVE_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_SILENCE_SECONDS = 10.0


class MemoryBridge:
    """`daemon.saves.Memory` over a store. Owns the store from the constructor on."""

    def __init__(
        self,
        store: Store,
        loaded: LoadedModel,
        client: EngineClient,
        model_name: str,
        files: Path | None = None,
        copy: SummedCopy | None = None,
    ) -> None:
        """`files` is the folder of ``--slot-save-path``: saves are written there too, and found there.

        `copy` is what the store copies with, if it is to be closed after it.
        """
        self._copy = copy
        self._store = store
        self._files = files
        self._has_tail = loaded.runner.layout.tail is not None
        self._client = client
        self._model_name = model_name
        self._port = StorePort(store, loaded, client)
        self._identified = trio.Event()
        self._is_silent = False
        self._actions = {"saves": 0, "save_seconds": 0.0, "restores": 0, "restore_seconds": 0.0}

    @property
    def port(self) -> MemoryPort:
        return self._port

    @property
    def root(self) -> bytes:
        return ROOT

    async def run(self) -> None:
        """Identify the model, then keep writing at a pace that decoding does not notice, until cancelled."""
        await trio.to_thread.run_sync(self._port.identify, abandon_on_cancel=True)
        self._identified.set()
        while True:
            busy = self._client.statistics().requests_processing > 0
            self._store.set_pace(_PACE_MIB_S if busy else None)
            self._watch_disk()
            await trio.sleep(_PACE_SECONDS)

    def _watch_disk(self) -> None:
        """Once for each time that it does not answer, say where it was asked."""
        seconds = self._store.silence_s
        if seconds > _SILENCE_SECONDS and not self._is_silent:
            logger().warning("the disk does not answer", seconds=round(seconds), stack=self._store.stack())
        self._is_silent = seconds > _SILENCE_SECONDS

    async def save(self, id_slot: int, name: str) -> SaveResult:
        root = self._require_root()
        started = trio.current_time()
        refused = ""
        for _ in range(_SAVE_ATTEMPTS):
            snapshot = await self._captured(id_slot)
            written = await self._written(root, snapshot, name)
            if written.outcome is not Outcome.WRITTEN:
                raise SavesUnavailable(f"the store did not take it: {written.reason or written.outcome}")
            if (info := written.saved) is None:
                # Somebody had the text forgotten before the save held it; the slot may still have it.
                refused = written.reason
                continue
            await self._export(name)
            n_resumable = info.n_point if self._has_tail else info.n_tokens
            self._count("save", started)
            return SaveResult(info.n_tokens, info.n_bytes, written.bytes_shared, n_resumable)
        raise SavesUnavailable(f"the store did not keep it: {refused}")

    async def restore(self, id_slot: int, name: str) -> RestoreResult:
        self._require_root()
        started = trio.current_time()
        found: list[Saved] = []
        if self._files is not None:
            await self._asked(partial(self._bring_in, self._files / name, name))

        def install(ticket: int) -> InstallPrefix:
            fingerprint = self._port.fingerprint
            assert fingerprint is not None, "there is a root"
            found.append(saved := self._store.resume(name, fingerprint))
            tokens = np.ascontiguousarray(saved.tokens, np.int32)
            self._port.foresee(tokens, saved.match)
            return InstallPrefix(ticket, id_slot, ROOT, tokens)

        try:
            with _as_save_errors():
                answer = await self._client.ask_through(self._post, install)
        finally:
            self._port.forget_foreseen()
        if not isinstance(answer, PrefixInstalled) or answer.error is not None:
            raise DamagedSave(str(getattr(answer, "error", "the slot gave no answer")))
        if not answer.n_tokens:
            raise DamagedSave(answer.reason or "nothing of it could be read")
        self._count("restore", started)
        return RestoreResult(answer.n_tokens, found[0].n_bytes, answer.n_tokens)

    async def erase(self, id_slot: int) -> int:
        return await erase_slot(self._client, id_slot)

    async def saved(self) -> list[SavedPrompt]:
        infos = await trio.to_thread.run_sync(self._store.list_manifests)
        return [SavedPrompt(i.name, i.n_bytes, i.created_ms / 1e3, i.n_tokens, i.model) for i in infos]

    async def saved_tokens(self, name: str) -> Tokens:
        manifest = await self._asked(partial(self._store.manifest, name))
        return np.ascontiguousarray(manifest.tokens, np.int32)

    async def delete(self, name: str) -> None:
        await self._asked(partial(self._store.delete_manifest, name))
        if self._files is not None:
            await trio.to_thread.run_sync(partial((self._files / name).unlink, missing_ok=True))

    async def rename(self, old: str, new: str) -> None:
        await self._asked(partial(self._store.rename_manifest, old, new))
        if self._files is not None and (self._files / old).exists():
            await trio.to_thread.run_sync((self._files / old).replace, self._files / new)

    async def forget(self, text: bytes, render: Render) -> Forgotten:
        # until then offers wait here, and would be written after what forgets them
        await self._identified.wait()
        n_blocks_ram = await forget_in_ram(self._client, ROOT, text, render)
        root = self._require_root()
        forget = partial(self._store.administration.forget_text, text, render, root=root, saves=False)
        gone = await self._asked(forget)
        return Forgotten(n_blocks_ram, gone.n_blocks, gone.n_bytes)

    def health(self) -> StoreHealth:
        if self._port.trouble:
            return StoreHealth("off", self._port.trouble)
        return StoreHealth(*self._store.condition())

    def statistics(self) -> Mapping[str, int | float | str]:
        return figures(self._store.statistics()) | self._actions

    async def close(self) -> None:
        """Cancelling the wait leaves the rest to a thread, which the end of the process cuts off cleanly."""
        self._store.set_pace(None)
        await trio.to_thread.run_sync(self._store.close, abandon_on_cancel=True)
        if self._copy is not None:
            await trio.to_thread.run_sync(self._copy.close)

    def _count(self, action: str, started: float) -> None:
        self._actions[f"{action}s"] += 1
        self._actions[f"{action}_seconds"] += trio.current_time() - started

    def _require_root(self) -> bytes:
        if self._port.trouble:
            raise SavesUnavailable(self._port.trouble)
        if self._port.root is None:
            raise SavesNotYet("The model is still being identified, try again in a moment")
        return self._port.root

    def _bring_in(self, file: Path, name: str) -> None:
        """A save that only exists as a file becomes one of the store's."""
        try:
            self._store.manifest(name, self._port.fingerprint)
        except UnknownName:
            if file.is_file():
                self._store.administration.import_save(file, name=name, expected=self._port.fingerprint)

    def _post(self, call: Callable[[], None]) -> None:
        """Have `call` run on the thread that will read the bytes, too."""
        if not self._store.post(call):
            raise StoreClosed("the store is closed")

    async def _asked(self, call: Callable[[], T]) -> T:
        """Run a call of the store about a save in a thread; its errors become a `SaveError`."""
        with _as_save_errors():
            return await trio.to_thread.run_sync(call)

    async def _captured(self, id_slot: int) -> PrefixSnapshot:
        answer = await self._client.ask(lambda ticket: CaptureSlot(ticket, id_slot))
        if isinstance(answer, SlotCaptured) and isinstance(answer.error, InvalidRequest):
            raise EmptySlot(str(answer.error))
        if not isinstance(answer, SlotCaptured) or answer.snapshot is None:
            raise SaveError(str(getattr(answer, "error", "the slot gave no answer")))
        return answer.snapshot

    async def _export(self, name: str) -> None:
        """Write the save to the folder of ``--slot-save-path``, if there is one. Raises SaveError."""
        if self._files is None:
            return
        export = partial(self._store.administration.export_save, name, self._files / name)
        try:
            await trio.to_thread.run_sync(export)
        except (StoreError, OSError) as error:
            raise SaveError(str(error)) from error

    async def _written(self, root: bytes, snapshot: PrefixSnapshot, name: str) -> WriteResult:
        """Write a captured slot under a name and wait for its commit, for as long as the disk gets on.

        The lease is given back whatever happens, but not before the writer lets go of it. What is given up
        may still come about.
        """
        token, done = trio.lowlevel.current_trio_token(), trio.Event()
        results: list[WriteResult] = []

        def on_done(result: WriteResult) -> None:
            results.append(result)
            try:
                token.run_sync_soon(done.set)
            except trio.RunFinishedError:
                return

        self._port.write(root, snapshot, SaveAs(name, model=self._model_name), on_done)
        while not done.is_set():
            with trio.move_on_after(_LOOK_SECONDS):
                await done.wait()
            if not done.is_set() and self._store.silence_s > _SAVE_SECONDS:
                raise SavesNotYet(f"the disk has not answered for {_SAVE_SECONDS:g} s")
        return results[0]


@contextmanager
def _as_save_errors() -> Iterator[None]:
    try:
        yield
    except UnknownName as error:
        raise UnknownSave(str(error)) from error
    except NameTaken as error:
        raise SaveExists(str(error)) from error
    except FingerprintMismatch as error:
        raise ForeignSave(str(error), ", ".join(error.fields)) from error
    except InvalidName as error:
        raise SaveError(str(error)) from error
    except Damaged as error:
        raise DamagedSave(str(error)) from error
    except (StoreError, OSError) as error:
        raise SavesUnavailable(str(error)) from error


async def open_bridge(config: Config, loaded: LoadedModel, client: EngineClient, name: str) -> MemoryBridge:
    """Open the configured store. Raises StoreError or OSError.

    It keeps as many points of a prompt as RAM does, so that an edit costs no more after a restart.
    """
    files = Path(config.slot_save_path) if config.slot_save_path else None
    if files is not None:
        files.mkdir(parents=True, exist_ok=True, mode=0o700)
    copy = await trio.to_thread.run_sync(SummedCopy)
    open_store = partial(
        Store.open,
        Path(config.store_path),
        budget_bytes=config.store_budget or None,
        max_points=max(MAX_POINTS, config.ctx_checkpoints),
        copy=copy,
    )
    try:
        store = await trio.to_thread.run_sync(open_store)
    except BaseException:
        copy.close()
        raise
    return MemoryBridge(store, loaded, client, name, files, copy)
