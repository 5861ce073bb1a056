"""Where engine memory becomes store records and comes back: the one file that knows both.

The engine's thread calls the `MemoryPort` half, which only posts: look-ups and loads run on the store's
reader thread, offers are written by its writer from the engine's own blocks, lent until they are. The
event loop calls the other half: named saves, health, closing.

The store's root contains a digest of the weights. A model seen for the first time is digested beside the
first requests; until that is done nothing is looked up, and the offers made meanwhile wait here.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import numpy as np
import trio

from daemon.config import Config
from daemon.engine_client import EngineClient
from daemon.logs import logger
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
    SavesUnavailable,
    StoreHealth,
    UnknownSave,
    erase_slot,
    forget_in_ram,
)
from runtime.engine.commands import CaptureSlot, InstallPrefix, PrefixInstalled, SlotCaptured
from runtime.engine.messages import Tokens
from runtime.engine.port import (
    BlockViews,
    LoadDone,
    LookupDone,
    MemoryPort,
    PointViews,
    PrefixSnapshot,
    StoredPoint,
)
from runtime.errors import InvalidRequest
from runtime.kernels import summed_copy
from runtime.memory.layout import BLOCK
from runtime.memory.prefix import Render
from runtime.memory.tail import ALIGNMENT
from runtime.model import LoadedModel
from store import (
    MAX_POINTS,
    BlockData,
    Damaged,
    Fingerprint,
    FingerprintMismatch,
    InvalidName,
    Loaded,
    Manifest,
    Match,
    NameTaken,
    Outcome,
    PointData,
    Segment,
    Store,
    StoreError,
    UnknownName,
    WriteRefused,
    WriteRequest,
    WriteResult,
    model_fingerprint,
    weights_digest,
)

T = TypeVar("T")

ROOT = b"model"
LOGITS = "last logits"
_PACE_MIB_S = 64.0  # while something decodes; unpaced writing costs a decode step up to a third (measured)
_PACE_SECONDS = 0.25
_MATCHES = 64
_WAITING_OFFERS = 64
_SAVE_ATTEMPTS = 3


class MemoryBridge:
    """`daemon.saves.Memory` over a store. Owns the store from the constructor on."""

    def __init__(
        self,
        store: Store,
        loaded: LoadedModel,
        client: EngineClient,
        model_name: str,
        files: Path | None = None,
    ) -> None:
        """`files` is the folder of ``--slot-save-path``: saves are written there too, and found there."""
        self._store = store
        self._files = files
        self._loaded = loaded
        self._layout = loaded.runner.layout
        self._client = client
        self._model_name = model_name
        self._matches: OrderedDict[int, Match] = OrderedDict()
        self._lock = threading.Lock()
        self._fingerprint: Fingerprint | None = None
        self._root: bytes | None = None
        self._waiting: deque[PrefixSnapshot] = deque()
        self._trouble = ""
        self._identified = trio.Event()

    @property
    def port(self) -> MemoryPort:
        return self

    @property
    def root(self) -> bytes:
        return ROOT

    def identify(self) -> None:
        """Digest the weights and open the store to this model; reads the file unless its digest is known.

        Called once, in a thread; blocks for about a second per GiB at most. Never raises.
        """
        try:
            digest = weights_digest(
                [Path(p) for p in self._loaded.file.shards], self._store.digests, max_threads=1
            )
            fingerprint = fingerprint_of(self._loaded, digest)
            root = self._store.register(fingerprint)
        except (OSError, StoreError) as error:
            logger().warning("the store is not used", reason=str(error))
            with self._lock:
                self._trouble = f"the model cannot be identified: {error}"
                waiting, self._waiting = self._waiting, deque()
            for snapshot in waiting:
                snapshot.release()
            return
        with self._lock:
            self._fingerprint, self._root = fingerprint, root
            waiting, self._waiting = self._waiting, deque()
        for snapshot in waiting:
            self._write(root, snapshot)

    async def run(self) -> None:
        """Identify the model, then keep writing at a pace that decoding does not notice, until cancelled."""
        await trio.to_thread.run_sync(self.identify, abandon_on_cancel=True)
        self._identified.set()
        while True:
            busy = self._client.statistics().requests_processing > 0
            self._store.set_pace(_PACE_MIB_S if busy else None)
            await trio.sleep(_PACE_SECONDS)

    def lookup(self, ticket: int, root: bytes, tokens: Tokens, have: int) -> None:
        self._on_reader(partial(self._look_up, ticket, tokens), lambda why: LookupDone(ticket, 0, why))

    def load(
        self,
        ticket: int,
        root: bytes,
        tokens: Tokens,
        n_tokens: int,
        destinations: tuple[BlockViews, ...],
        point: PointViews | None = None,
    ) -> None:
        call = partial(self._load, ticket, tokens, n_tokens, destinations, point)
        self._on_reader(call, lambda why: LoadDone(ticket, 0, why))

    def offer(self, snapshot: PrefixSnapshot) -> None:
        with self._lock:
            root = self._root
            if root is None:
                self._waiting.append(snapshot)
                given_up = (
                    self._waiting.popleft() if self._trouble or len(self._waiting) > _WAITING_OFFERS else None
                )
        if root is not None:
            self._write(root, snapshot)
        elif given_up is not None:
            given_up.lost()
            given_up.release()

    async def save(self, id_slot: int, name: str) -> SaveResult:
        root = self._require_root()
        refused = ""
        for _ in range(_SAVE_ATTEMPTS):
            snapshot = await self._captured(id_slot)
            written = await self._written(root, snapshot)
            if written.outcome is not Outcome.WRITTEN:
                raise SavesUnavailable(f"the store did not take it: {written.reason or written.outcome}")
            save = partial(self._store.save_manifest, name, root, snapshot.tokens, model=self._model_name)
            try:
                info = await trio.to_thread.run_sync(save)
                if self._files is not None:
                    export = partial(self._store.administration.export_save, name, self._files / name)
                    await trio.to_thread.run_sync(export)
            except WriteRefused as error:
                # Somebody had the text forgotten before the save held it; the slot may still have it.
                refused = str(error)
                continue
            except (StoreError, OSError) as error:
                raise SaveError(str(error)) from error
            n_resumable = info.n_tokens if self._layout.tail is None else info.n_point
            return SaveResult(info.n_tokens, info.n_bytes, written.bytes_shared, n_resumable)
        raise SavesUnavailable(f"the store did not keep it: {refused}")

    async def restore(self, id_slot: int, name: str) -> RestoreResult:
        self._require_root()
        manifest = await self._asked(partial(self._manifest, name))
        tokens = np.ascontiguousarray(manifest.tokens, np.int32)
        answer = await self._client.ask(lambda ticket: InstallPrefix(ticket, id_slot, ROOT, tokens))
        if not isinstance(answer, PrefixInstalled) or answer.error is not None:
            raise DamagedSave(str(getattr(answer, "error", "the slot gave no answer")))
        if not answer.n_tokens:
            raise DamagedSave(answer.reason or "nothing of it could be read")
        return RestoreResult(answer.n_tokens, manifest.info.n_bytes, answer.n_tokens)

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
        if self._trouble:
            return StoreHealth("off", self._trouble)
        return StoreHealth(*self._store.condition())

    def statistics(self) -> Mapping[str, int | float | str]:
        return asdict(self._store.statistics())

    async def close(self) -> None:
        """Cancelling the wait leaves the rest to a thread, which the end of the process cuts off cleanly."""
        self._store.set_pace(None)
        await trio.to_thread.run_sync(self._store.close, abandon_on_cancel=True)

    def _require_root(self) -> bytes:
        if self._root is None:
            raise SavesUnavailable(
                self._trouble or "The model is still being identified, try again in a moment"
            )
        return self._root

    def _manifest(self, name: str) -> Manifest:
        """The save of that name; one that only exists as a file is brought in first."""
        try:
            return self._store.manifest(name, self._fingerprint)
        except UnknownName:
            if self._files is None or not (self._files / name).is_file():
                raise
        self._store.administration.import_save(self._files / name, name=name, expected=self._fingerprint)
        return self._store.manifest(name, self._fingerprint)

    async def _asked(self, call: Callable[[], T]) -> T:
        """Run a call of the store about a save in a thread; its errors become a `SaveError`."""
        try:
            return await trio.to_thread.run_sync(call)
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

    async def _captured(self, id_slot: int) -> PrefixSnapshot:
        answer = await self._client.ask(lambda ticket: CaptureSlot(ticket, id_slot))
        if isinstance(answer, SlotCaptured) and isinstance(answer.error, InvalidRequest):
            raise EmptySlot(str(answer.error))
        if not isinstance(answer, SlotCaptured) or answer.snapshot is None:
            raise SaveError(str(getattr(answer, "error", "the slot gave no answer")))
        return answer.snapshot

    async def _written(self, root: bytes, snapshot: PrefixSnapshot) -> WriteResult:
        """Write a captured slot and wait for its commit. The lease is given back whatever happens."""
        token, done = trio.lowlevel.current_trio_token(), trio.Event()
        results: list[WriteResult] = []

        def on_done(result: WriteResult) -> None:
            results.append(result)
            try:
                token.run_sync_soon(done.set)
            except trio.RunFinishedError:
                return

        self._write(root, snapshot, why="save", on_done=on_done)
        await done.wait()
        return results[0]

    def _write(
        self,
        root: bytes,
        snapshot: PrefixSnapshot,
        why: str | None = None,
        on_done: Callable[[WriteResult], None] | None = None,
    ) -> None:
        def settled(result: WriteResult) -> None:
            if result.outcome is not Outcome.WRITTEN:
                snapshot.lost()
            snapshot.release()
            if on_done is not None:
                on_done(result)

        blocks = tuple(BlockData(b.index, b.n_rows, self._segments(b)) for b in snapshot.blocks)
        points = tuple(PointData(p.n_tokens, self._parts(p)) for p in snapshot.points)
        request = WriteRequest(root, snapshot.tokens, blocks, why or snapshot.why, settled, points)
        try:
            self._store.offer(request)
        except (ValueError, StoreError) as error:
            logger().warning("a prefix was not offered to the store", reason=str(error))
            settled(WriteResult(Outcome.FAILED, reason=str(error)))

    def _segments(self, views: BlockViews) -> tuple[Segment, ...]:
        return tuple(
            Segment(group.name, group.layout_id, group.tile_bytes, data)
            for group, data in zip(self._layout.groups, views.segments, strict=True)
            if data.size
        )

    def _parts(self, point: PointViews) -> tuple[Segment, ...]:
        tail = self._layout.tail
        assert tail is not None, "only models with a tail have points"
        parts = [
            Segment(part.name, part.layout_id, ALIGNMENT, data)
            for part, data in zip(tail.parts(point.n_tokens), point.parts, strict=True)
        ]
        if point.logits is not None:
            parts.append(Segment(LOGITS, "f32/1", ALIGNMENT, point.logits.view(np.uint8)))
        return tuple(parts)

    def _on_reader(
        self, call: Callable[[], LookupDone | LoadDone], failed: Callable[[str], LookupDone | LoadDone]
    ) -> None:
        """Run `call` on the store's reader thread and post what it returns, or `failed(why)`."""

        def body() -> None:
            try:
                answer = call()
            except Exception as error:
                logger().exception("the store failed to answer")
                answer = failed(f"{type(error).__name__}: {error}")
            self._client.engine.post(answer)

        if not self._store.post(body):
            self._client.engine.post(failed("the store is closed"))

    def _look_up(self, ticket: int, tokens: Tokens) -> LookupDone:
        if self._root is None:
            return LookupDone(ticket, 0, self._trouble or "the model is still being identified")
        match = self._store.lookup(self._root, tokens)
        self._matches[ticket] = match
        if len(self._matches) > _MATCHES:
            self._matches.popitem(last=False)
        points = tuple(
            StoredPoint(ref.n_tokens, LOGITS in ref.parts)
            for ref in match.points
            if self._resumable(match, ref.n_tokens) == ref.n_tokens
        )
        n_tokens = self._resumable(match, match.n_tokens)
        reason = match.reason
        if n_tokens < match.n_tokens:
            reason = f"rows of windowed layers are stored up to token {n_tokens} only"
        return LookupDone(ticket, n_tokens, reason, points)

    def _resumable(self, match: Match, limit: int) -> int:
        """The most tokens, at most `limit`, for which the rows of windows that are stored suffice."""
        groups = self._layout.groups
        return self._layout.resumable(limit, lambda g, i: groups[g].name in match.blocks[i].groups)

    def _load(
        self,
        ticket: int,
        tokens: Tokens,
        n_tokens: int,
        destinations: tuple[BlockViews, ...],
        point: PointViews | None,
    ) -> LoadDone:
        """As many blocks as can be had; with `point`, which comes first, all of them or nothing."""
        match = self._matches.pop(ticket, None) or self._store.lookup(self._root or b"", tokens)
        if point is not None:
            loaded = self._load_point(match, point)
            if not loaded:
                return LoadDone(ticket, 0, loaded.reason)
        wanted = [
            (match.blocks[views.index], self._segments(views))
            for views in takewhile(partial(_is_in, match), destinations)
        ]
        n_loaded, reason = self._store.load_all(wanted)
        if n_loaded == len(destinations):
            return LoadDone(ticket, n_tokens, "")
        done = 0 if point else destinations[n_loaded].index * BLOCK
        return LoadDone(ticket, done, reason or match.reason)

    def _load_point(self, match: Match, point: PointViews) -> Loaded:
        ref = next((ref for ref in match.points if ref.n_tokens == point.n_tokens), None)
        if ref is None:
            return Loaded(False, f"the point at {point.n_tokens} is gone")
        return self._store.load_point(ref, self._parts(point))


def _is_in(match: Match, views: BlockViews) -> bool:
    """A look-up that had to be made again may have found less."""
    return views.index < len(match.blocks) and views.n_rows <= match.blocks[views.index].n_rows


def fingerprint_of(loaded: LoadedModel, weights: bytes) -> Fingerprint:
    """What decides the bytes of the model's memory, in the store's order of fields."""

    def fields(prefix: str) -> tuple[tuple[str, str | int | float], ...]:
        return tuple((name, value) for name, value in loaded.identity if name.startswith(prefix))

    return model_fingerprint(
        weights=weights,
        architecture=loaded.file.architecture,
        layers=fields("override"),
        kv_layout=fields("layout"),
        positions=fields("rope"),
        numerics=fields("numerics"),
    )


async def open_bridge(config: Config, loaded: LoadedModel, client: EngineClient, name: str) -> MemoryBridge:
    """Open the configured store. Raises StoreError or OSError.

    It keeps as many points of a prompt as RAM does, so that an edit costs no more after a restart.
    """
    open_store = partial(
        Store.open,
        Path(config.store_path),
        budget_bytes=config.store_budget or None,
        max_points=max(MAX_POINTS, config.ctx_checkpoints),
        copy=summed_copy.copy_and_sum,
    )
    await trio.to_thread.run_sync(summed_copy.warm_up)
    files = Path(config.slot_save_path) if config.slot_save_path else None
    if files is not None:
        files.mkdir(parents=True, exist_ok=True, mode=0o700)
    return MemoryBridge(await trio.to_thread.run_sync(open_store), loaded, client, name, files)
