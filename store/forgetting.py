"""Removing a text on purpose: what only it holds goes, what others share stays.

Deleting makes bytes unreachable; they leave the file when it is compacted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from store import branches, chain, points
from store.environment import Environment
from store.errors import UnknownName
from store.records import BlockRecord, PointRecord
from store.update import Update, read_block, read_usage

Render = Callable[[npt.NDArray[np.int32]], bytes]
"""The text that tokens stand for; that of a whole is that of its parts in a row."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was removed: blocks, the bytes of blocks and points, names of saves."""

    n_blocks: int
    n_bytes: int
    saves: tuple[str, ...]


class Forgetting:
    """Steps of one write transaction, counting what they remove."""

    def __init__(self, environment: Environment, update: Update) -> None:
        self._env = environment
        self._update = update
        self._n_blocks = 0
        self._n_bytes = 0
        self._saves: list[str] = []

    @property
    def result(self) -> Forgotten:
        return Forgotten(self._n_blocks, self._n_bytes, tuple(self._saves))

    def manifest(self, name: str) -> None:
        """A save, and of its blocks what nothing else needs. Raises `UnknownName`."""
        record = self._update.delete_manifest(name)
        if record is None:
            raise UnknownName(name)
        self._saves.append(name)
        self._where_unneeded([record.root, *record.ids])

    def prefix(self, root: bytes, elements: bytes, *, saves: bool) -> None:
        """Everything below `root` that starts with `elements`, and the part of them that nothing else needs.

        What a save holds stays, with all above it, unless `saves` says that such saves go too.
        """
        doomed: list[bytes] = []
        path = [root]
        for block, parent, part in chain.chain(root, elements):
            is_last = len(path) * chain.BLOCK * chain.ELEMENT_BYTES >= len(elements)
            for child, record in self._children(parent):
                begins_with_all = is_last and record.elements.startswith(part)
                is_stale_leaf = record.is_leaf and part.startswith(record.elements)
                if begins_with_all or is_stale_leaf:
                    doomed.append(child)
            path.append(block)
        self._remove(doomed, path, saves=saves)

    def text(self, root: bytes, text: bytes, render: Render, *, saves: bool) -> None:
        """Everything below `root` whose text, by `render`, starts with `text`; see `prefix` for `saves`."""
        doomed: list[bytes] = []
        path = [root]
        found = False
        ahead = [(root, b"")]
        while ahead:
            parent, before = ahead.pop()
            # A point may outlive the leaf that its last tokens were in.
            found = found or any(
                (before + render(chain.decode_tokens(point.elements))).startswith(text)
                for point in self._points_below(parent)
            )
            for child, record in self._children(parent):
                read = before + render(chain.decode_tokens(record.elements))
                if read.startswith(text):
                    doomed.append(child)
                elif text.startswith(read):
                    path.append(child)
                    ahead.append((child, read))
        self._remove(doomed, path if doomed or found else [], saves=saves)

    def everything(self) -> None:
        """All blocks and all saves."""
        self._n_blocks, self._n_bytes = self._update.ledger.n_blocks, self._update.ledger.live_bytes
        self._saves = [name for name, _ in self._update.manifests()]
        self._update.clear()

    def _children(self, parent: bytes) -> list[tuple[bytes, BlockRecord]]:
        txn = self._update.txn
        found = ((child, read_block(self._env, txn, child)) for child in self._ids_below(parent))
        return [(child, record) for child, record in found if record is not None]

    def _points_below(self, parent: bytes) -> list[PointRecord]:
        found = (self._update.point(key) for key in points.keys_below(self._env, self._update.txn, parent))
        return [record for record in found if record is not None]

    def _ids_below(self, parent: bytes) -> list[bytes]:
        return branches.children(self._update.txn, self._env.kid, parent)

    def _remove(self, doomed: list[bytes], path: list[bytes], *, saves: bool) -> None:
        """Whole subtrees, then of the path to them what has become useless; the deepest first."""
        order = list(doomed)
        for block in order:
            order += self._ids_below(block)
        if saves:
            going = set(order)
            for name, record in self._update.manifests():
                if not going.isdisjoint(record.ids):
                    self.manifest(name)
        self._where_unneeded(order)
        self._where_unneeded(path)

    def _where_unneeded(self, blocks: Sequence[bytes]) -> None:
        """Of blocks in the order of their depth, and of the points below them, what nothing else needs.

        A block is needed by what lies below it, a point by a block that begins with its tokens, and both by
        saves.
        """
        for block in reversed(blocks):
            self._drop_points(block)
            usage = read_usage(self._env, self._update.txn, block)
            record = read_block(self._env, self._update.txn, block)
            if usage is not None and record is not None and usage.evictable:
                self._n_bytes += self._update.remove_block(block, record)
                self._n_blocks += 1

    def _drop_points(self, parent: bytes) -> None:
        keys = points.keys_below(self._env, self._update.txn, parent)
        left = [record.elements for _, record in self._children(parent)] if keys else []
        for key in keys:
            record = self._update.point(key)
            if record is None or any(elements.startswith(record.elements) for elements in left):
                continue
            if self._update.usage(key[-chain.ID_BYTES :]).evictable:
                self._n_bytes += self._update.remove_point(key, record)
