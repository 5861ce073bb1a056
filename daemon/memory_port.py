"""What the engine asks of the store: look-ups, loads and offers.

The engine's thread only posts: look-ups and loads run on the store's reader thread, offers are written by its
writer from the engine's own blocks, lent until they are.

The store's root contains a digest of the weights. A model seen for the first time is digested beside the
first requests; until that is done nothing is looked up, and the offers made meanwhile wait here.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np

from daemon.engine_client import EngineClient
from daemon.logs import logger
from runtime.engine.messages import Tokens
from runtime.engine.port import (
    BlockViews,
    LoadDone,
    LookupDone,
    PointViews,
    PrefixSnapshot,
    StoredPoint,
)
from runtime.memory.layout import BLOCK
from runtime.memory.tail import ALIGNMENT
from runtime.model import LoadedModel
from store import (
    BlockData,
    Fingerprint,
    Loaded,
    Match,
    Outcome,
    PointData,
    SaveAs,
    Segment,
    Store,
    StoreError,
    WriteRequest,
    WriteResult,
    model_fingerprint,
    weights_digest,
)

LOGITS = "last logits"
_MATCHES = 64
_WAITING_OFFERS = 64


class StorePort:
    """`MemoryPort` over a store, for one loaded model.

    `root` and `fingerprint` are None until the model is identified; `trouble` says why it cannot be.
    """

    def __init__(self, store: Store, loaded: LoadedModel, client: EngineClient) -> None:
        self._store = store
        self._loaded = loaded
        self._layout = loaded.runner.layout
        self._client = client
        self._matches: OrderedDict[int, Match] = OrderedDict()
        self._foreseen: tuple[Tokens, Match] | None = None
        self._lock = threading.Lock()
        self._waiting: deque[PrefixSnapshot] = deque()
        self.fingerprint: Fingerprint | None = None
        self.root: bytes | None = None
        self.trouble = ""

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
                self.trouble = f"the model cannot be identified: {error}"
                waiting, self._waiting = self._waiting, deque()
            for snapshot in waiting:
                snapshot.release()
            return
        with self._lock:
            self.fingerprint, self.root = fingerprint, root
            waiting, self._waiting = self._waiting, deque()
        for snapshot in waiting:
            self.write(root, snapshot)

    def foresee(self, tokens: Tokens, match: Match) -> None:
        """What was found of tokens the engine is about to ask for: it is spared a wait for the reader."""
        self._foreseen = tokens, match

    def forget_foreseen(self) -> None:
        """The engine had no need to ask: what was found will not be true for ever."""
        self._foreseen = None

    def lookup(self, ticket: int, root: bytes, tokens: Tokens, have: int) -> None:
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None and np.array_equal(foreseen[0], tokens):
            self._client.engine.post(self._found(ticket, foreseen[1]))
            return
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
            root = self.root
            if root is None:
                self._waiting.append(snapshot)
                given_up = (
                    self._waiting.popleft() if self.trouble or len(self._waiting) > _WAITING_OFFERS else None
                )
        if root is not None:
            self.write(root, snapshot)
        elif given_up is not None:
            given_up.lost()
            given_up.release()

    def recall(self) -> bool:
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for snapshot in waiting:
            snapshot.lost()
            snapshot.release()
        return self._store.recall() or bool(waiting)

    def write(
        self,
        root: bytes,
        snapshot: PrefixSnapshot,
        save_as: SaveAs | None = None,
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
        request = WriteRequest(root, snapshot.tokens, blocks, snapshot.why, settled, points, save_as)
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
        if self.root is None:
            return LookupDone(ticket, 0, self.trouble or "the model is still being identified")
        return self._found(ticket, self._store.lookup(self.root, tokens))

    def _found(self, ticket: int, match: Match) -> LookupDone:
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
        match = self._matches.pop(ticket, None) or self._store.lookup(self.root or b"", tokens)
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
