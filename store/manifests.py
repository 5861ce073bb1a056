"""Named saves: a name, the tokens it stands for, and a hold on the blocks that keep their state."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from store import chain
from store.environment import Environment, Txn
from store.errors import Damaged, FingerprintMismatch, NameTaken, UnknownName, WriteRefused
from store.fingerprint import Fingerprint, diff
from store.lookup import Finder, Match, known_block
from store.points import read_point
from store.records import ManifestRecord, Usage, unseal
from store.update import Update, read_usage


@dataclass(frozen=True, slots=True)
class ManifestInfo:
    """A named save as listed.

    `n_bytes` are held by the save, `bytes_shared` of them by other saves as well. `fingerprint` is the
    32-byte id, `created_ms` Unix time. `note` and `model` are the caller's words. `n_point` is where the
    point lies that it holds, 0 without one.
    """

    name: str
    fingerprint: bytes
    root: bytes
    n_tokens: int
    n_bytes: int
    bytes_shared: int
    note: str
    model: str
    created_ms: int
    n_point: int = 0


@dataclass(frozen=True)
class Saved:
    """What a name stands for: tokens, int32 [n_tokens], and what a look-up finds of them.

    `n_bytes` are held by the save.
    """

    record: ManifestRecord
    tokens: npt.NDArray[np.int32]
    match: Match
    n_bytes: int


@dataclass(frozen=True)
class Manifest:
    """A named save, with all that is known about it."""

    info: ManifestInfo
    tokens: npt.NDArray[np.int32]
    match: Match

    @property
    def n_restorable(self) -> int:
        """So many of the tokens can be restored."""
        return self.match.n_tokens

    @property
    def n_point(self) -> int:
        """The farthest point within them, 0 when there is none."""
        return self.match.points[0].n_tokens if self.match.points else 0


def save(
    update: Update,
    environment: Environment,
    name: str,
    fingerprint: Fingerprint,
    root: bytes,
    elements: bytes,
    note: str,
    model: str,
) -> tuple[ManifestInfo, list[bytes]]:
    """Name the prefix `elements`, hold its blocks and its farthest point; the ids of these come second.

    Raises `WriteRefused`, before anything is written, when not all of it is stored.
    """
    n_tokens = len(elements) // chain.ELEMENT_BYTES
    match = Finder(environment, update.txn, lambda block: False, {}).find(root, elements)
    if match.n_tokens < n_tokens:
        raise WriteRefused(f"only {match.n_tokens} of {n_tokens} tokens are stored: {match.reason}")
    ids = b"".join(ref.id for ref in match.blocks)
    point = match.points[0].key if match.points else b""
    update.put_fingerprint(fingerprint)
    record = ManifestRecord(fingerprint.id, root, n_tokens, ids, note, model, update.now_ms, point)
    update.put_manifest(name, record)
    return describe(environment, update.txn, name, record), record.held


def rename(update: Update, old: str, new: str) -> None:
    """Give a save another name; raises `UnknownName` or `NameTaken`."""
    if update.manifest(new) is not None:
        raise NameTaken(new)
    record = update.delete_manifest(old)
    if record is None:
        raise UnknownName(old)
    update.put_manifest(new, record)


def describe(environment: Environment, txn: Txn, name: str, record: ManifestRecord) -> ManifestInfo:
    usages = [read_usage(environment, txn, held) or Usage(0, 0, 0, 0, 0) for held in record.held]
    return ManifestInfo(
        name,
        record.fingerprint,
        record.root,
        record.n_tokens,
        sum(usage.n_bytes for usage in usages),
        sum(usage.n_bytes for usage in usages if usage.refs > 1),
        record.note,
        record.model,
        record.created_ms,
        _position(environment, txn, record.point),
    )


def _position(environment: Environment, txn: Txn, key: bytes) -> int:
    """Where the point of that key lies; 0 when there is none, or its record is damaged."""
    try:
        point = read_point(environment, txn, key) if key else None
    except Damaged:
        return 0
    return point.n_tokens if point else 0


def list_all(environment: Environment, txn: Txn) -> list[ManifestInfo]:
    """All readable saves in the order of their names; `repair.inspect` tells of the others."""
    found = []
    for key, value in txn.cursor(db=environment.man):
        with contextlib.suppress(Damaged):
            record = ManifestRecord.decode(bytes(key), value)
            found.append(describe(environment, txn, bytes(key).decode(), record))
    return found


def show(
    environment: Environment,
    txn: Txn,
    name: str,
    expected: Fingerprint | None,
    avoid: Callable[[bytes], bool],
) -> Manifest:
    """As `read`, with what other saves say about it."""
    saved = read(environment, txn, name, expected, avoid)
    return Manifest(describe(environment, txn, name, saved.record), saved.tokens, saved.match)


def read(
    environment: Environment,
    txn: Txn,
    name: str,
    expected: Fingerprint | None,
    avoid: Callable[[bytes], bool],
) -> Saved:
    """A save with its tokens. `UnknownName`, `FingerprintMismatch`, or `Damaged` when its tokens are lost."""
    value = txn.get(name.encode(), db=environment.man)
    if value is None:
        raise UnknownName(name)
    record = ManifestRecord.decode(name.encode(), value)
    if expected is not None and expected.id != record.fingerprint:
        made = read_fingerprint(environment, txn, record.fingerprint)
        raise FingerprintMismatch(name, diff(made, expected) if made else ())
    known = environment.memo(txn)
    elements, n_bytes = b"", 0
    for block in record.ids:
        stored = known_block(environment, txn, block, known)
        if stored is None:
            raise Damaged(f"the save {name!r} has lost the text from token {len(elements) // 4} on")
        elements += stored.elements
        n_bytes += stored.stored_bytes()
    if record.point and (usage := read_usage(environment, txn, record.held[-1])):
        n_bytes += usage.n_bytes
    elements = elements[: record.n_tokens * chain.ELEMENT_BYTES]
    match = Finder(environment, txn, avoid, known).find(record.root, elements)
    return Saved(record, chain.decode_tokens(elements), match, n_bytes)


def read_fingerprint(environment: Environment, txn: Txn, fingerprint: bytes) -> Fingerprint | None:
    """The readable record of a fingerprint id, None when the store never saw it; raises `Damaged`."""
    key = b"fp:" + fingerprint
    value = txn.get(key, db=environment.meta)
    return None if value is None else Fingerprint.unpack(unseal(key, value)[1])
