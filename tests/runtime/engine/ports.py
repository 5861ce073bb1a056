"""Stores for the engine: one that works, and ways in which stores do not."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runtime.engine import BlockViews, LoadDone, LookupDone, PrefixSnapshot
from runtime.engine.core import Message
from runtime.engine.port import PointViews, StoredPoint
from runtime.memory.layout import BLOCK, MemoryLayout
from tests.runtime.engine.fakes import LAYOUT

Tokens = np.ndarray
Post = Callable[[Message], None]


@dataclass
class Record:
    n_rows: int
    segments: tuple[bytes, ...]


@dataclass
class PointRecord:
    parts: tuple[bytes, ...]
    logits: np.ndarray | None


class DictStore:
    """Keeps blocks and points by their root and tokens. Offers are copied only in `write`, answers given in
    `answer`. Of windows it keeps all the rows it was ever lent."""

    def __init__(self, layout: MemoryLayout = LAYOUT) -> None:
        self.layout = layout
        self.points: dict[tuple[bytes, bytes], PointRecord] = {}
        self.damaged: set[int] = set()
        self.post: Post = lambda message: None
        self.records: dict[tuple[bytes, bytes], Record] = {}
        self.offers: list[PrefixSnapshot] = []
        self.seen: list[tuple[str, int]] = []
        self.lookups: list[tuple[int, bytes, Tokens, int]] = []
        self.loads: list[tuple[int, bytes, Tokens, int, tuple[BlockViews, ...], PointViews | None]] = []
        self.cut_loads_to: int | None = None
        self.is_writing = self.gives_back = False
        self.n_recalls = 0

    def lookup(self, ticket: int, root: bytes, tokens: Tokens, have: int) -> None:
        self.lookups.append((ticket, root, tokens.copy(), have))

    def load(
        self,
        ticket: int,
        root: bytes,
        tokens: Tokens,
        n_tokens: int,
        destinations: tuple[BlockViews, ...],
        point: PointViews | None = None,
    ) -> None:
        self.loads.append((ticket, root, tokens.copy(), n_tokens, destinations, point))

    def offer(self, snapshot: PrefixSnapshot) -> None:
        self.offers.append(snapshot)
        self.seen.append((snapshot.why, len(snapshot.tokens)))

    def recall(self) -> bool:
        """As if all of it were saves, or with `gives_back` as if none were."""
        self.n_recalls += 1
        if self.gives_back:
            self.write()
        return self.is_writing

    def write(self) -> None:
        """Store what was offered, however long ago, and give it back."""
        for snapshot in self.offers:
            for block in snapshot.blocks:
                n = block.index * BLOCK + block.n_rows
                key = (snapshot.root, snapshot.tokens[:n].tobytes())
                known = self.records.get(key)
                segments = tuple(
                    data.tobytes() or (known.segments[g] if known is not None else b"")
                    for g, data in enumerate(block.segments)
                )
                self.records[key] = Record(block.n_rows, segments)
            for point in snapshot.points:
                key = (snapshot.root, snapshot.tokens[: point.n_tokens].tobytes())
                logits = None if point.logits is None else point.logits.copy()
                self.points[key] = PointRecord(tuple(part.tobytes() for part in point.parts), logits)
            snapshot.release()
        self.offers.clear()

    def answer(self) -> bool:
        """Answer what was asked; returns whether anything was."""
        lookups, self.lookups = self.lookups, []
        loads, self.loads = self.loads, []
        for ticket, root, tokens, _ in lookups:
            n = self._longest(root, tokens)
            reason = "" if n == len(tokens) else f"knows {n}"
            self.post(LookupDone(ticket, n, reason, self._points(root, tokens)))
        for load in loads:
            self.post(self._load(*load))
        return bool(lookups or loads)

    def _longest(self, root: bytes, tokens: Tokens) -> int:
        best = 0
        for known_root, key in self.records:
            known = np.frombuffer(key, np.int32)
            n = min(len(known), len(tokens))
            different = np.flatnonzero(known[:n] != tokens[:n])
            common = int(different[0]) if len(different) else n
            if known_root == root and common > (len(known) - 1) // BLOCK * BLOCK:
                best = max(best, common)

        def has(group: int, i: int) -> bool:
            return self._find(root, tokens[: min(best, (i + 1) * BLOCK)], {group}) is not None

        return self.layout.resumable(best, has)

    def _points(self, root: bytes, tokens: Tokens) -> tuple[StoredPoint, ...]:
        wanted = tokens.tobytes()
        found = [
            StoredPoint(len(key) // 4, record.logits is not None)
            for (known_root, key), record in self.points.items()
            if known_root == root and wanted.startswith(key)
        ]
        return tuple(sorted(found, key=lambda point: -point.n_tokens))

    def _load(
        self,
        ticket: int,
        root: bytes,
        tokens: Tokens,
        n_tokens: int,
        destinations: tuple[BlockViews, ...],
        point: PointViews | None,
    ) -> LoadDone:
        done = destinations[0].index * BLOCK if destinations else n_tokens
        for views in destinations:
            end = views.index * BLOCK + views.n_rows
            wanted = {g for g, target in enumerate(views.segments) if len(target)}
            record = self._find(root, tokens[:end], wanted)
            if record is None or (self.cut_loads_to is not None and end > self.cut_loads_to):
                for target in views.segments:
                    target[:] = 0xEE  # what a damaged record leaves in a destination
                return LoadDone(ticket, done if point is None else 0, "damaged record")
            for target, data in zip(views.segments, record.segments, strict=True):
                if len(target):
                    target[:] = np.frombuffer(data, np.uint8)[: len(target)]
            done = end
        if point is not None and not self._load_point(root, tokens, point):
            return LoadDone(ticket, 0, "damaged point")
        return LoadDone(ticket, n_tokens, "")

    def _load_point(self, root: bytes, tokens: Tokens, point: PointViews) -> bool:
        record = self.points[root, tokens[: point.n_tokens].tobytes()]
        damaged = point.n_tokens in self.damaged
        for target, data in zip(point.parts, record.parts, strict=True):
            target[:] = 0xEE if damaged else np.frombuffer(data, np.uint8)
        if point.logits is not None:
            point.logits[:] = record.logits
        return not damaged

    def _find(self, root: bytes, tokens: Tokens, groups: set[int]) -> Record | None:
        wanted = tokens.tobytes()
        index = (len(tokens) - 1) // BLOCK
        for (known_root, key), record in self.records.items():
            same_block = (len(key) // 4 - 1) // BLOCK == index
            has_rows = all(record.segments[g] for g in groups)
            if known_root == root and same_block and has_rows and key.startswith(wanted):
                return record
        return None
