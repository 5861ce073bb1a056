"""The store as its owner sees it; what happens behind it is in the other modules of this package."""

import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import lmdb

from store import chain, manifests, opening
from store.administration import Administration
from store.breaker import FIRST_PAUSE_S, Breaker
from store.chain import Tokens
from store.digests import StoredDigests
from store.environment import Environment
from store.errors import StoreError, UnknownName, WriteRefused
from store.fingerprint import Fingerprint
from store.growth import Growth
from store.insertion import GiveName, Job
from store.lookup import BlockRef, Match
from store.manifests import Manifest, ManifestInfo, Saved
from store.names import checked_name
from store.ownership import Ownership
from store.parts import Copy, copy_and_sum
from store.pins import Pins
from store.points import PointRef
from store.reading import Loaded, Reading
from store.requests import SaveAs, WriteRequest
from store.room import Room
from store.statistics import Counters, State, StoreStatistics
from store.update import Segment, Update, read_ledger
from store.writer import Writer

SAVE_TIMEOUT_S = 60.0
MAX_POINTS = 8


@dataclass(frozen=True, slots=True)
class Options:
    """What `Store.open` was told, with its defaults filled in."""

    budget_bytes: int = 0
    min_free_bytes: int = 0
    queue_bytes: int = 0
    retry_s: float = FIRST_PAUSE_S
    max_points: int = MAX_POINTS
    copy: Copy = copy_and_sum


_open_stores: "weakref.WeakSet[Store]" = weakref.WeakSet()


class Store:
    """Blocks and points of sequence memory, and named saves, in one directory. Made by `Store.open`.

    Every method may be called from any thread. `lookup`, `load`, `load_point` and `offer` never raise for a
    reason that lies in the store: they answer with a miss, or settle the offer, and say why.
    """

    def __init__(self, environment: Environment, ownership: Ownership | None, options: Options) -> None:
        self.environment = environment
        self._ownership = ownership
        self._budget = options.budget_bytes
        self._max_points = options.max_points
        self._counters = Counters()
        self._pins = Pins()
        self._fingerprints: dict[bytes, Fingerprint] = {}
        self._distrusted: set[bytes] = set()
        self._writer: Writer | None = None
        if ownership is not None:
            room = Room(environment, options.budget_bytes, options.min_free_bytes, self._counters)
            growth = Growth(environment, options.budget_bytes, options.min_free_bytes)
            self._writer = Writer(
                environment,
                room,
                growth,
                self._pins,
                self._distrusted,
                self._counters,
                Breaker(first_pause_s=options.retry_s),
                options.queue_bytes,
                ownership,
            )
        self._reading = Reading(
            environment, self._writer, self._pins, self._distrusted, self._counters, options.copy
        )
        self.digests = StoredDigests(environment, self._writer)
        self.administration = Administration(self)
        _open_stores.add(self)

    @classmethod
    def open(
        cls,
        state_directory: Path,
        *,
        budget_bytes: int | None = None,
        read_only: bool = False,
        queue_bytes: int = 256 << 20,
        min_free_bytes: int | None = None,
        allow_network: bool = False,
        retry_s: float = FIRST_PAUSE_S,
        max_points: int = MAX_POINTS,
        copy: Copy = copy_and_sum,
    ) -> Self:
        """Open or create the store in ``state_directory/store``.

        `budget_bytes` bounds what is kept (default: a tenth of the disk, at most 32 GiB), `queue_bytes` what
        waits to be written; writing stops while the disk has less than `min_free_bytes` left (default: 1 GiB
        or 2 %). `retry_s` is the first pause after a failed write. Of the points of one prefix `max_points`
        are kept. `copy` moves what is restored; a compiled one is faster. With `read_only` a store can be
        looked at while its owner runs. Takes about a second per GiB after an unclean stop, milliseconds
        otherwise.
        Raises `StoreBusy`, `StoreUnusable`, or `Damaged` (read-only).
        """
        directory = Path(state_directory) / "store"
        if read_only:
            return cls(opening.open_beside(directory), None, Options(copy=copy))
        ownership = Ownership(directory, allow_network)
        try:
            options = Options(
                opening.default_budget(directory) if budget_bytes is None else budget_bytes,
                opening.default_min_free(directory) if min_free_bytes is None else min_free_bytes,
                queue_bytes,
                retry_s,
                max_points,
                copy,
            )
            environment, repairs = ownership.open(options.budget_bytes)
        except BaseException:
            ownership.release(clean=False)
            raise
        store = cls(environment, ownership, options)
        store._counters.add(rebuilt=repairs)
        return store

    def close(self, deadline: float = 10.0) -> None:
        """Write what is queued for up to `deadline` seconds, drop the rest, mark a clean stop. Idempotent."""
        _open_stores.discard(self)
        end = time.monotonic() + deadline
        self._reading.stop(deadline)
        clean = self._writer.stop(max(0.0, end - time.monotonic())) if self._writer else False
        if self.environment.close(max(1.0, end - time.monotonic())) and self._ownership:
            self._ownership.release(clean=clean)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, fingerprint: Fingerprint) -> bytes:
        """The root under which requests with this fingerprint store and find; keeps the readable record.

        Roots must be registered once per process before `offer` and `save_manifest` accept them.
        """
        root = fingerprint.root
        if root not in self._fingerprints:
            self._fingerprints[root] = fingerprint
            if self._writer:
                self._writer.post(lambda update: update.put_fingerprint(fingerprint))
        return root

    def lookup(self, root: bytes, tokens: Tokens) -> Match:
        """The longest prefix of `tokens` (integers [n]) that can be restored, at any length.

        What is found is kept from eviction for 30 s, or until `load`. About 5 ms for 131,072 tokens.
        """
        return self._reading.lookup(root, tokens)

    def load(self, ref: BlockRef, destinations: Sequence[Segment]) -> Loaded:
        """Copy the first bytes of a block's segments into ``destinations[i].data`` and verify them there.

        A destination may be shorter than what is stored: as long as the rows wanted. What fails verification
        is never found again until it is rewritten. After a failure the destinations hold garbage.
        """
        return self._reading.load(ref, destinations)

    def load_all(self, wanted: Sequence[tuple[BlockRef, Sequence[Segment]]]) -> tuple[int, str]:
        """`load` many blocks; how many from the first on are there, and why not more."""
        return self._reading.load_all(wanted)

    def load_point(self, ref: PointRef, destinations: Sequence[Segment]) -> Loaded:
        """Copy parts of a point into ``destinations[i].data``, which have their sizes, and verify them there.

        Otherwise as `load`.
        """
        return self._reading.load(ref, destinations)

    def post(self, call: Callable[[], None]) -> bool:
        """Run `call` on the store's reader thread; False when the store is closing and it will not run."""
        return self._reading.post(call)

    def offer(self, request: WriteRequest) -> None:
        """Lend a prefix for writing. Returns at once; ``request.on_done`` is called exactly once.

        Raises ValueError for a malformed request or an unregistered root, and `InvalidName`; `on_done` is not
        called then.
        """
        request.check()
        elements = chain.encode_tokens(request.tokens)
        fingerprint = self._known(request.root)
        named = self._named(request.save_as, request.root, elements) if request.save_as else None
        n_bytes, at_most = request.n_bytes, self._max_points
        self.writer.offer(
            Job(request, fingerprint.id, elements, n_bytes, max_points=at_most, give_name=named)
        )

    def recall(self) -> bool:
        """Settle what was offered as soon as that can be, written or not; saves are written to their end.

        True when something was settled, or written since the last call.
        """
        return self.writer.recall()

    def flush(self, deadline: float) -> bool:
        """Wait up to `deadline` seconds until all that was offered is settled; False when it is not."""
        return self.writer.flush(deadline)

    def set_pace(self, mib_per_second: float | None) -> None:
        """Write no faster than this while something else needs the machine; None for full speed."""
        self.writer.set_pace(mib_per_second)

    def save_manifest(
        self, name: str, root: bytes, tokens: Tokens, *, note: str = "", model: str = ""
    ) -> ManifestInfo:
        """Name a stored prefix and keep its blocks; returns when the save survives a power loss.

        Replaces a save of the same name. All of `tokens` must be stored: offer them before with `why` "save".
        Raises `InvalidName`, or `WriteRefused` saying how much is stored or why nothing can be written.
        ValueError when `note` and `model` together pass 64 KiB.
        """
        named = self._named(SaveAs(name, note, model), root, chain.encode_tokens(tokens))
        info, held = self.writer.order(named, SAVE_TIMEOUT_S, sync=True)
        self.writer.end_hold(held)
        return info

    def _named(self, save_as: SaveAs, root: bytes, elements: bytes) -> GiveName:
        """What makes a stored prefix a save. Raises as `SaveAs.checked`, ValueError for an unknown root."""
        as_, fingerprint = save_as.checked(), self._known(root)

        def give_name(update: Update) -> tuple[ManifestInfo, list[bytes]]:
            return manifests.save(
                update, self.environment, as_.name, fingerprint, root, elements, as_.note, as_.model
            )

        return give_name

    def manifest(self, name: str, expected: Fingerprint | None = None) -> Manifest:
        """The save of this name with its tokens.

        Raises `InvalidName`, `UnknownName`, `FingerprintMismatch` naming the fields in which it differs from
        `expected`, or `Damaged`.
        """
        name, avoid = checked_name(name), self._distrusted.__contains__
        return self.environment.read(lambda txn: manifests.show(self.environment, txn, name, expected, avoid))

    def resume(self, name: str, expected: Fingerprint) -> Saved:
        """What a save stands for, to be loaded as after `lookup`. Raises what `manifest` does."""
        name, avoid = checked_name(name), self._distrusted.__contains__
        saved = self.environment.read(
            lambda txn: manifests.read(self.environment, txn, name, expected, avoid)
        )
        self._reading.note_found(saved.match, len(saved.tokens))
        return saved

    def list_manifests(self) -> tuple[ManifestInfo, ...]:
        """All readable saves by name."""
        return tuple(self.environment.read(lambda txn: manifests.list_all(self.environment, txn)))

    def delete_manifest(self, name: str) -> None:
        """Remove a save; its blocks stay as long as there is room. Raises `InvalidName`, `UnknownName`."""
        name = checked_name(name)
        if self.writer.order(lambda u: u.delete_manifest(name), SAVE_TIMEOUT_S, sync=True) is None:
            raise UnknownName(name)

    def rename_manifest(self, old: str, new: str) -> None:
        """Give a save another name. Raises `InvalidName`, `UnknownName` or `NameTaken`."""
        old, new = checked_name(old), checked_name(new)
        self.writer.order(lambda u: manifests.rename(u, old, new), SAVE_TIMEOUT_S, sync=True)

    def statistics(self) -> StoreStatistics:
        """Counters and gauges of now; answers also when the store is closed or its file is in trouble."""
        state, reason = self.condition()
        queue_bytes = self._writer.queue_bytes if self._writer else 0
        gauges = replace(
            self._counters.snapshot(),
            state=state,
            reason=reason,
            budget_bytes=self._budget,
            queue_bytes=queue_bytes,
        )
        try:
            ledger = self.environment.read(lambda txn: read_ledger(self.environment, txn))
            return replace(
                gauges,
                live_bytes=ledger.live_bytes,
                pinned_bytes=ledger.pinned_bytes,
                n_blocks=ledger.n_blocks,
                n_points=ledger.n_points,
                point_bytes=ledger.point_bytes,
                n_manifests=ledger.n_manifests,
                file_bytes=self.environment.file_bytes(),
                oldest_reader_s=self.environment.oldest_reader_s(),
            )
        except (StoreError, lmdb.Error, OSError) as error:
            return gauges if reason else replace(gauges, state="off", reason=str(error))

    def condition(self) -> tuple[State, str]:
        """Whether the store is ok, and why not. Touches neither disk nor file, so it never waits."""
        if self._writer is None:
            return "ok", ""
        reason = self._writer.complaint
        return ("off" if self._writer.is_dead else "degraded" if reason else "ok"), reason

    @property
    def silence_s(self) -> float:
        """For how long the disk has not answered what is being written, in seconds."""
        return self._writer.silence_s if self._writer else 0.0

    def stack(self) -> str:
        """Where the thread that writes is, for the log when the disk does not answer."""
        return self._writer.stack() if self._writer else ""

    def _known(self, root: bytes) -> Fingerprint:
        try:
            return self._fingerprints[root]
        except KeyError:
            raise ValueError("the root was not registered") from None

    @property
    def writer(self) -> Writer:
        """For the modules of this package; raises `WriteRefused` on a store open for reading only."""
        if self._writer is None:
            raise WriteRefused("the store is open for reading only")
        return self._writer

    def _abandon_in_child(self) -> None:
        """After a fork: nothing here may touch the file, and no lock may be waited for."""
        self._counters, self._pins = Counters(), Pins()
        self.environment.poison()
        self._reading.poison()
        if self._writer:
            self._writer.poison()
        if self._ownership:
            self._ownership.abandon()


def _abandon_stores() -> None:
    for store in list(_open_stores):
        store._abandon_in_child()


os.register_at_fork(after_in_child=_abandon_stores)
