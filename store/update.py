"""Everything that changes the store, as steps of one write transaction that keep all its sums right.

The tables hold the same facts from several sides: `idx` and `pnt` are the truth, `kid`, `use` and `lru` are
derived from them and could be rebuilt, the ledger sums them up. Only this file writes to them.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import lmdb

from store import branches, parts, points
from store.chain import BLOCK, ID_BYTES
from store.environment import Environment, T, Txn
from store.errors import Damaged
from store.fingerprint import Fingerprint
from store.records import BlockRecord, Ledger, ManifestRecord, PointRecord, SegmentRecord, Usage, seal

_HIT_BONUS_MS = 3_600_000
_FRESH_MS = 5_000
_MAX_BONUS_HITS = 24


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of one cache group of a block, or one part of a point: `data` is uint8 [n], contiguous.

    `layout_id` names the meaning of the bytes; the store compares it and knows nothing else of it. A unit is
    what the caller may later want a multiple of, so that first rows can be read alone: 16 positions, or as
    many as a row stands for. Points are read whole.
    """

    group: str
    layout_id: str
    unit_bytes: int
    data: parts.Bytes


class Evicted(NamedTuple):
    """How many blocks and points went, and the bytes they took."""

    n_blocks: int
    n_points: int
    n_bytes: int

    @property
    def n(self) -> int:
        return self.n_blocks + self.n_points


def run_update(environment: Environment, call: Callable[["Update"], T]) -> T:
    """One committed transaction: `call` sees the ledger, and the ledger is stored with what it did."""

    def body(txn: Txn) -> T:
        update = Update(environment, txn)
        result = call(update)
        update.store_ledger()
        return result

    return environment.write(body)


def read_ledger(environment: Environment, txn: Txn) -> Ledger:
    """The ledger as of this transaction; raises `Damaged`."""
    value = txn.get(b"ledger", db=environment.meta)
    return Ledger() if value is None else Ledger.decode(b"ledger", value)


def read_block(environment: Environment, txn: Txn, block: bytes) -> BlockRecord | None:
    """The record of a block, None when there is none; raises `Damaged`."""
    value = txn.get(block, db=environment.idx)
    return None if value is None else BlockRecord.decode(block, value)


def read_usage(environment: Environment, txn: Txn, block: bytes) -> Usage | None:
    """The usage record of a block, None when there is none; raises `Damaged`."""
    value = txn.get(block, db=environment.use)
    return None if value is None else Usage.decode(block, value)


def lru_key(usage: Usage, block: bytes) -> bytes:
    """Place in the order of eviction: last use, later by an hour for each hit, at most a day."""
    bonus = min(usage.hits, _MAX_BONUS_HITS) * _HIT_BONUS_MS
    return (usage.last_used_ms + bonus).to_bytes(8, "big") + block


class Update:
    """The steps of one write transaction. Valid inside `run_update` only."""

    def __init__(self, environment: Environment, txn: Txn) -> None:
        self.environment = self._env = environment
        self.txn = txn
        self.ledger = read_ledger(environment, txn)
        self.now_ms = max(int(time.time() * 1000), self.ledger.clock_ms)

    def store_ledger(self) -> None:
        """Write the sums; also what makes pages freed by the transaction before usable again."""
        self.ledger = replace(self.ledger, clock_ms=self.now_ms, sequence=self.ledger.sequence + 1)
        self.txn.put(b"ledger", self.ledger.encode(b"ledger"), db=self._env.meta)

    def reload_ledger(self) -> None:
        """Take over sums that were written past this object."""
        self.ledger = read_ledger(self._env, self.txn)

    def block(self, block: bytes) -> BlockRecord | None:
        return read_block(self._env, self.txn, block)

    def usage(self, block: bytes) -> Usage:
        """Raises `Damaged` when the block has none."""
        usage = read_usage(self._env, self.txn, block)
        if usage is None:
            raise Damaged("a block has no usage record")
        return usage

    def nearest(
        self, parent: bytes, elements: bytes, usable: Callable[[bytes], bool]
    ) -> tuple[bytes, int] | None:
        return branches.nearest(self.txn, self._env.kid, parent, elements, usable)

    def add_block(
        self, block: bytes, bare: BlockRecord, segments: Sequence[Segment], *, parent_is_root: bool
    ) -> BlockRecord:
        """Write a new block or leaf whose id and elements are in `bare`; its parent must be there."""
        record = replace(bare, segments=self._write_segments(block, segments, 0))
        self.txn.put(block, record.encode(block), db=self._env.idx)
        branches.insert(self.txn, self._env.kid, record.parent, record.elements, block)
        self._set_usage(block, None, Usage(self.now_ms, 0, 0, 0, record.stored_bytes()))
        if not parent_is_root:
            self._count_child(record.parent, +1)
        return record

    def fill_block(self, block: bytes, record: BlockRecord, segments: Sequence[Segment]) -> BlockRecord:
        """Add segments of groups that a known block lacks: never written, or quarantined."""
        first = max((segment.number for segment in record.segments), default=-1) + 1
        filled = replace(record, segments=record.segments + self._write_segments(block, segments, first))
        self._replace_block(block, filled)
        return filled

    def hollow_block(self, block: bytes) -> None:
        """Drop a block's bytes but not its place in the chain: refilled, it serves all below it again."""
        record = self.block(block)
        if record is None:
            return
        self._delete_segments(block, record.segments)
        self._replace_block(block, replace(record, segments=()))

    def remove_block(self, block: bytes, record: BlockRecord) -> int:
        """Delete a block that nothing lies below; return the bytes it took."""
        usage = self.usage(block)
        self._delete_segments(block, record.segments)
        self.txn.delete(block, db=self._env.idx)
        branches.remove(self.txn, self._env.kid, record.parent, record.elements, block)
        self._set_usage(block, usage, None)
        if record.index:
            self._count_child(record.parent, -1)
        return usage.n_bytes

    def point(self, key: bytes) -> PointRecord | None:
        """The record of a point by its key in table `pnt`; raises `Damaged`."""
        return points.read_point(self._env, self.txn, key)

    def add_point(self, bare: PointRecord, segments: Sequence[Segment]) -> PointRecord:
        """Write a new point whose prefix is in `bare`; the block it lies below must be there."""
        key = points.key_of(bare)
        id_ = key[-ID_BYTES:]
        record = replace(bare, segments=self._write_segments(id_, segments, 0))
        self._put_point(key, record)
        usage = Usage(self.now_ms, 0, 0, 0, record.stored_bytes(), key[:-ID_BYTES])
        self._set_usage(id_, None, usage)
        if record.n_tokens >= BLOCK:
            self._count_child(record.parent, +1)
        return record

    def fill_point(self, key: bytes, record: PointRecord, segments: Sequence[Segment]) -> PointRecord:
        """Add parts that a known point lacks: logits that were not kept, or what was quarantined."""
        first = max((segment.number for segment in record.segments), default=-1) + 1
        new = self._write_segments(key[-ID_BYTES:], segments, first)
        filled = replace(record, segments=record.segments + new)
        self._replace_point(key, filled)
        return filled

    def drop_damaged_point(self, key: bytes) -> None:
        """Remove a point; of one that a save holds only the bytes, so that it can be filled again."""
        record = self.point(key)
        if record is None:
            return
        if self.usage(key[-ID_BYTES:]).evictable:
            self.remove_point(key, record)
        else:
            self._delete_segments(key[-ID_BYTES:], record.segments)
            self._replace_point(key, replace(record, segments=()))

    def remove_point(self, key: bytes, record: PointRecord) -> int:
        """Delete a point; return the bytes it took."""
        id_ = key[-ID_BYTES:]
        usage = self.usage(id_)
        self._delete_segments(id_, record.segments)
        self.txn.delete(key, db=self._points_table)
        self._set_usage(id_, usage, None)
        if record.n_tokens >= BLOCK:
            self._count_child(record.parent, -1)
        return usage.n_bytes

    def remove(self, id_: bytes) -> int:
        """Delete a block that nothing lies below, or a point; raises `Damaged` when it is gone."""
        place = self.usage(id_).place
        if place:
            point = self.point(place + id_)
            if point is not None:
                return self.remove_point(place + id_, point)
        else:
            block = self.block(id_)
            if block is not None:
                return self.remove_block(id_, block)
        raise Damaged("the order of eviction names something that is gone")

    def evicted_since(self, before: Ledger) -> Evicted:
        """What was removed since the ledger said `before`, if nothing was added."""
        now = self.ledger
        return Evicted(
            before.n_blocks - now.n_blocks,
            before.n_points - now.n_points,
            before.live_bytes - now.live_bytes,
        )

    def touch(self, block: bytes, used_ms: int, hits: int) -> None:
        """Note a use of a block or point; one evicted meanwhile is no error."""
        usage = read_usage(self._env, self.txn, block)
        if usage is None or (not hits and used_ms - usage.last_used_ms < _FRESH_MS):
            return
        last_used_ms = max(usage.last_used_ms, min(used_ms, self.now_ms))
        self._set_usage(block, usage, replace(usage, last_used_ms=last_used_ms, hits=usage.hits + hits))

    def add_reference(self, block: bytes, difference: int) -> None:
        """A save holds the block or point (+1) or lets it go (-1)."""
        usage = self.usage(block)
        self._set_usage(block, usage, replace(usage, refs=max(0, usage.refs + difference)))

    def manifest(self, name: str) -> ManifestRecord | None:
        """The save of this name; raises `Damaged`."""
        key = name.encode()
        value = self.txn.get(key, db=self._env.man)
        return None if value is None else ManifestRecord.decode(key, value)

    def manifests(self) -> list[tuple[str, ManifestRecord]]:
        """All readable saves."""
        found = []
        for key, value in self.txn.cursor(db=self._env.man):
            with contextlib.suppress(Damaged):
                found.append((bytes(key).decode(), ManifestRecord.decode(bytes(key), value)))
        return found

    def put_manifest(self, name: str, manifest: ManifestRecord) -> None:
        """Write a save, in place of one of the same name."""
        self.delete_manifest(name)
        for held in manifest.held:
            self.add_reference(held, +1)
        key = name.encode()
        self.txn.put(key, manifest.encode(key), db=self._env.man)
        self.ledger = replace(self.ledger, n_manifests=self.ledger.n_manifests + 1)

    def delete_manifest(self, name: str) -> ManifestRecord | None:
        """Remove a save and let its blocks go; return what it was."""
        manifest = self.manifest(name)
        if manifest is None:
            return None
        self.txn.delete(name.encode(), db=self._env.man)
        for held in manifest.held:
            if read_usage(self._env, self.txn, held) is not None:
                self.add_reference(held, -1)
        self.ledger = replace(self.ledger, n_manifests=self.ledger.n_manifests - 1)
        return manifest

    def clear(self) -> None:
        """Remove all blocks and saves; fingerprints and digests of files stay."""
        for name in ("idx", "pnt", "dat", "kid", "use", "lru", "man", "qua"):
            self.txn.drop(getattr(self._env, name), delete=False)
        self.ledger = Ledger(clock_ms=self.ledger.clock_ms, sequence=self.ledger.sequence)

    def note_quarantine(self, block: bytes, why: str) -> None:
        """Keep a line about damage for `emberd store show`."""
        key = block + self.now_ms.to_bytes(8, "big")
        self.txn.put(key, seal(key, (1, why)), db=self._env.qua)

    def put_fingerprint(self, fingerprint: Fingerprint) -> None:
        """Keep the readable record of a fingerprint from its first use on."""
        key = b"fp:" + fingerprint.id
        if self.txn.get(key, db=self._env.meta) is None:
            self.txn.put(key, seal(key, (1, fingerprint.pack(), self.now_ms)), db=self._env.meta)

    def put_digest(self, key: bytes, digest: bytes) -> None:
        self.txn.put(key, seal(key, (1, digest, self.now_ms)), db=self._env.wid)

    def eviction_order(self) -> Iterator[bytes]:
        """Ids of blocks and points that may go, the least valuable first.

        Removing one while iterating is not allowed.
        """
        for key in self.txn.cursor(db=self._env.lru).iternext(keys=True, values=False):
            yield bytes(key[8 : 8 + ID_BYTES])

    def _delete_segments(self, id_: bytes, segments: Sequence[SegmentRecord]) -> None:
        for segment in segments:
            parts.delete_segment(self.txn, self._env.dat, id_, segment)

    @property
    def _points_table(self) -> lmdb._Database:
        assert self._env.pnt is not None, "an owner's file is of the newest schema"
        return self._env.pnt

    def _put_point(self, key: bytes, record: PointRecord) -> None:
        self.txn.put(key, record.encode(key), db=self._points_table)

    def _replace_point(self, key: bytes, record: PointRecord) -> None:
        self._put_point(key, record)
        usage = self.usage(key[-ID_BYTES:])
        self._set_usage(key[-ID_BYTES:], usage, replace(usage, n_bytes=record.stored_bytes()))

    def _write_segments(
        self, block: bytes, segments: Sequence[Segment], first: int
    ) -> tuple[SegmentRecord, ...]:
        return tuple(
            parts.write_segment(
                self.txn, self._env.dat, block, number, s.group, s.layout_id, s.unit_bytes, s.data
            )
            for number, s in enumerate(segments, first)
        )

    def _replace_block(self, block: bytes, record: BlockRecord) -> None:
        self.txn.put(block, record.encode(block), db=self._env.idx)
        usage = self.usage(block)
        self._set_usage(block, usage, replace(usage, n_bytes=record.stored_bytes()))

    def _count_child(self, parent: bytes, difference: int) -> None:
        usage = self.usage(parent)
        self._set_usage(parent, usage, replace(usage, n_children=usage.n_children + difference))

    def _set_usage(self, block: bytes, old: Usage | None, new: Usage | None) -> None:
        """The one place where usage, the order of eviction and the ledger change, together."""
        if old is not None and old.evictable:
            self.txn.delete(lru_key(old, block), db=self._env.lru)
        if new is not None and new.evictable:
            self.txn.put(lru_key(new, block), b"", db=self._env.lru)
        if new is None:
            self.txn.delete(block, db=self._env.use)
        else:
            self.txn.put(block, new.encode(block), db=self._env.use)
        before, after = _sums(old), _sums(new)
        self.ledger = replace(
            self.ledger,
            **{name: getattr(self.ledger, name) + after[name] - before[name] for name in after},
        )


def _sums(usage: Usage | None) -> dict[str, int]:
    """What a record adds to the ledger."""
    n_bytes = usage.n_bytes if usage else 0
    is_point = bool(usage and usage.place)
    return {
        "live_bytes": n_bytes,
        "pinned_bytes": n_bytes if usage and usage.refs else 0,
        "n_blocks": int(usage is not None and not is_point),
        "n_points": int(is_point),
        "point_bytes": n_bytes if is_point else 0,
    }
