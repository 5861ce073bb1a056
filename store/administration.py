"""What an operator asks of a store: forget, prune, verify, export, import."""

import queue
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from store import audit, chain
from store.audit import FingerprintInfo, Verification
from store.chain import Tokens
from store.errors import Damaged, FingerprintMismatch, WriteRefused
from store.fingerprint import Fingerprint, diff
from store.forgetting import Forgetting, Forgotten, Render
from store.manifests import ManifestInfo
from store.names import checked_name
from store.portable import PortableFile, write_portable
from store.pruning import EVERYTHING, Selection
from store.repair import rebuild
from store.requests import BlockData, Outcome, PointData, WriteRequest, WriteResult
from store.update import Update

if TYPE_CHECKING:
    from store.store import Store

TIMEOUT_S = 60.0


class Administration:
    """Slow verbs of a store, as ``store.administration``. Every method may be called from any thread.

    All that change something raise `WriteRefused` when nothing can be written.
    """

    def __init__(self, store: "Store") -> None:
        self._store = store

    def forget_manifest(self, name: str) -> Forgotten:
        """Remove a save and what only it holds. Raises `InvalidName`, `UnknownName`."""
        name = checked_name(name)
        return self._forget(lambda step: step.manifest(name))

    def forget_prefix(self, root: bytes, tokens: Tokens, *, saves: bool = False) -> Forgotten:
        """Remove everything that starts with `tokens`, and the part of it that no other text shares.

        Saves keep what they hold, unless `saves` says that they go as well.
        """
        elements = chain.encode_tokens(tokens)
        return self._forget(lambda step: step.prefix(root, elements, saves=saves))

    def forget_tokens(self, tokens: Tokens) -> Forgotten:
        """Remove everything that starts with `tokens` under every fingerprint, saves included."""
        elements = chain.encode_tokens(tokens)
        return self._forget_everywhere(lambda step, root: step.prefix(root, elements, saves=True))

    def forget_text(
        self, text: bytes, render: Render, *, root: bytes | None = None, saves: bool = True
    ) -> Forgotten:
        """Remove everything whose text starts with `text`, under every fingerprint or below `root` only.

        `render` turns token ids (int32 [n], of any model) into the bytes they stand for. Unless `saves` says
        that saves go too, they keep what they hold.
        """
        if root is not None:
            return self._forget(lambda step: step.text(root, text, render, saves=saves))
        return self._forget_everywhere(lambda step, each: step.text(each, text, render, saves=saves))

    def forget_all(self) -> Forgotten:
        """Remove all blocks and saves."""
        return self._forget(lambda step: step.everything())

    def _forget_everywhere(self, call: Callable[[Forgetting, bytes], None]) -> Forgotten:
        roots = [chain.root_id(info.id) for info in self.fingerprints()]

        def every_root(step: Forgetting) -> None:
            for root in roots:
                call(step, root)

        return self._forget(every_root)

    def _forget(self, call: Callable[[Forgetting], None]) -> Forgotten:
        def body(update: Update) -> Forgotten:
            step = Forgetting(self._store.environment, update)
            call(step)
            return step.result

        return self._store.writer.order(body, TIMEOUT_S, sync=True)

    def prune(self, *, down_to: int = 0, selection: Selection = EVERYTHING) -> int:
        """Evict of `selection` what was used least recently until `down_to` live bytes remain.

        Returns how many blocks and points went; saves keep what they hold.
        """
        return self._store.writer.prune(down_to, selection, TIMEOUT_S)

    def verify(self, *, deep: bool) -> Verification:
        """Check that all records fit together and, when `deep`, that all bytes match their checksums."""
        return audit.verify(self._store.environment, deep=deep)

    def repair(self) -> int:
        """Derive all tables anew from the block records; return how many blocks were unusable."""
        environment = self._store.environment

        def body(update: Update) -> int:
            lost = rebuild(environment, update.txn)
            update.reload_ledger()
            return lost

        return self._store.writer.order(body, TIMEOUT_S, sync=True)

    def fingerprints(self) -> list[FingerprintInfo]:
        """Every model and setting under which something was stored."""
        environment = self._store.environment
        return environment.read(lambda txn: audit.fingerprints(environment, txn))

    def quarantine_notes(self) -> list[tuple[bytes, int, str]]:
        """``(block id, Unix ms, why)`` of everything that failed verification."""
        environment = self._store.environment
        return environment.read(lambda txn: audit.quarantine_notes(environment, txn))

    def set_aside(self) -> Path | None:
        """The newest data file that could not be used, None when there is none."""
        path = self._store.environment.directory / "quarantine" / "data.mdb"
        return path if path.exists() else None

    def export_save(self, name: str, path: Path) -> int:
        """Write a save as one portable file, whole or not at all; return its size.

        Raises `InvalidName`, `UnknownName`, `Damaged`, or OSError.
        """
        return write_portable(self._store.environment, checked_name(name), path)

    def import_save(
        self, path: Path, *, name: str | None = None, expected: Fingerprint | None = None
    ) -> ManifestInfo:
        """Bring in a portable file, under its own name or `name`.

        Raises `Damaged`, `FingerprintMismatch` when it is not of `expected`, `InvalidName`, or OSError. After
        an error some of its blocks may be stored, but no save.
        """
        with PortableFile(path) as file:
            header = file.header
            name = checked_name(header.name if name is None else name)
            if expected is not None and expected.id != header.fingerprint.id:
                raise FingerprintMismatch(name, diff(header.fingerprint, expected))
            root = self._store.register(header.fingerprint)
            for index, segments in file.blocks():
                start = index * chain.BLOCK
                prefix = header.tokens[: start + chain.BLOCK]
                self._write(root, prefix, blocks=(BlockData(index, len(prefix) - start, segments),))
            if header.point is not None:
                n_tokens = header.point.n_tokens
                self._write(root, header.tokens[:n_tokens], points=(PointData(n_tokens, file.point()),))
            return self._store.save_manifest(name, root, header.tokens, note=header.note, model=header.model)

    def _write(
        self,
        root: bytes,
        prefix: Tokens,
        blocks: tuple[BlockData, ...] = (),
        points: tuple[PointData, ...] = (),
    ) -> None:
        """Write a block or point and wait for it."""
        results: queue.SimpleQueue[WriteResult] = queue.SimpleQueue()
        try:
            self._store.offer(WriteRequest(root, prefix, blocks, "save", results.put, points))
        except ValueError as error:
            raise Damaged(f"the file holds what cannot be stored: {error}") from None
        result = results.get(timeout=TIMEOUT_S)
        if result.outcome is not Outcome.WRITTEN:
            raise WriteRefused(result.reason)
