"""Is the store consistent, and making it so again: everything is derived anew from blocks, points and saves.

`idx`, `pnt` and `man` are the truth. A record that is unreadable, or whose parent is gone, is dropped with
its bytes; usage, order of eviction, branches and ledger are recomputed. Damage inside the bytes of a block or
point is found when they are read (or by `emberd store verify`), not here.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from store import branches, points
from store.chain import BLOCK, ID_BYTES
from store.environment import Environment, Txn
from store.errors import Damaged
from store.records import BlockRecord, Ledger, ManifestRecord, PointRecord, Usage
from store.update import lru_key, read_ledger, read_usage


@dataclass(frozen=True, slots=True)
class _Entry:
    """A block, or with a `place` a point; `index` counts the blocks above it."""

    parent: bytes
    index: int
    n_bytes: int
    place: bytes = b""


@dataclass(slots=True)
class _Survey:
    """What the truth says: sound records, keys of unusable ones, references by saves, unusable saves."""

    blocks: dict[bytes, _Entry] = field(default_factory=dict)
    points: dict[bytes, _Entry] = field(default_factory=dict)
    lost_blocks: list[bytes] = field(default_factory=list)
    lost_points: list[bytes] = field(default_factory=list)
    refs: Counter[bytes] = field(default_factory=Counter)
    n_children: Counter[bytes] = field(default_factory=Counter)
    n_manifests: int = 0
    lost_manifests: list[bytes] = field(default_factory=list)

    @property
    def entries(self) -> dict[bytes, _Entry]:
        return self.blocks | self.points

    def usage(self, id_: bytes, entry: _Entry, old: Usage | None) -> Usage:
        return replace(
            old or Usage(0, 0, 0, 0, 0),
            refs=self.refs[id_],
            n_children=self.n_children[id_],
            n_bytes=entry.n_bytes,
            place=entry.place,
        )


def _survey(environment: Environment, txn: Txn) -> _Survey:
    survey = _Survey()
    _survey_blocks(environment, txn, survey)
    _survey_points(environment, txn, survey)
    survey.n_children.update(entry.parent for entry in survey.entries.values() if entry.index)
    for key, value in txn.cursor(db=environment.man):
        try:
            survey.refs.update(set(ManifestRecord.decode(bytes(key), value).held))
            survey.n_manifests += 1
        except (Damaged, TypeError):
            survey.lost_manifests.append(bytes(key))
    return survey


def _survey_blocks(environment: Environment, txn: Txn, survey: _Survey) -> None:
    blocks = survey.blocks
    for key, value in txn.cursor(db=environment.idx):
        block = bytes(key)
        try:
            record = BlockRecord.decode(block, value)
            blocks[block] = _Entry(record.parent, record.index, record.stored_bytes())
        except (Damaged, TypeError):
            survey.lost_blocks.append(block)
    for block, found in sorted(blocks.items(), key=lambda item: item[1].index):
        parent = blocks.get(found.parent)
        if found.index and (parent is None or parent.index != found.index - 1):
            survey.lost_blocks.append(block)
            del blocks[block]


def _survey_points(environment: Environment, txn: Txn, survey: _Survey) -> None:
    for key, value in points.all_points(environment, txn):
        try:
            record = PointRecord.decode(key, value)
            index = record.n_tokens // BLOCK
            parent = survey.blocks.get(record.parent)
            has_parent = parent is not None and parent.index == index - 1 if index else True
            if not has_parent or points.key_of(record) != key or record.n_tokens % BLOCK != record.n_rows:
                raise Damaged("it does not lie where it should")
            entry = _Entry(record.parent, index, record.stored_bytes(), key[:-ID_BYTES])
            survey.points[key[-ID_BYTES:]] = entry
        except (Damaged, TypeError):
            survey.lost_points.append(key)


def inspect(environment: Environment, txn: Txn) -> list[str]:
    """What does not fit together, one line each; empty when the store is consistent."""
    survey = _survey(environment, txn)
    lost = [("block", block) for block in survey.lost_blocks]
    lost += [("point", key[-ID_BYTES:]) for key in survey.lost_points]
    problems = [f"{kind} record {id_.hex()[:16]} is unreadable or has no parent" for kind, id_ in lost]
    problems += [f"the save {key.decode(errors='replace')!r} is unreadable" for key in survey.lost_manifests]
    entries = survey.entries
    sums = Ledger(n_blocks=len(survey.blocks), n_points=len(survey.points), n_manifests=survey.n_manifests)
    evictable = 0
    for id_, entry in entries.items():
        try:
            usage = read_usage(environment, txn, id_)
        except Damaged:
            usage = None
        expected = survey.usage(id_, entry, usage)
        if usage != expected:
            problems.append(f"usage of {_kind(entry)} {id_.hex()[:16]} is wrong")
        sums = _counted(sums, expected)
        if expected.evictable:
            evictable += 1
            if txn.get(lru_key(expected, id_), db=environment.lru) is None:
                problems.append(f"{_kind(entry)} {id_.hex()[:16]} is missing in the order of eviction")
    if txn.stat(environment.lru)["entries"] != evictable:
        problems.append("the order of eviction has entries of records that are gone")
    if txn.stat(environment.use)["entries"] != len(entries):
        problems.append("usage records without a block or point")
    problems += _check_branches(environment, txn, survey)
    problems += _check_ledger(environment, txn, sums)
    problems += [f"bytes without a record: {id_.hex()[:16]}" for id_ in _strays(environment, txn, entries)]
    return problems


def _kind(entry: _Entry) -> str:
    return "point" if entry.place else "block"


def _counted(sums: Ledger, usage: Usage) -> Ledger:
    return replace(
        sums,
        live_bytes=sums.live_bytes + usage.n_bytes,
        pinned_bytes=sums.pinned_bytes + (usage.n_bytes if usage.refs else 0),
        point_bytes=sums.point_bytes + (usage.n_bytes if usage.place else 0),
    )


def _check_branches(environment: Environment, txn: Txn, survey: _Survey) -> Iterator[str]:
    seen: Counter[bytes] = Counter()
    for _, value in txn.cursor(db=environment.kid):
        seen[bytes(value)] += 1
    for block in survey.blocks:
        record = BlockRecord.decode(block, txn.get(block, b"", db=environment.idx))
        if seen.pop(block, 0) != branches.n_entries(record.elements):
            yield f"block {block.hex()[:16]} is not where look-ups search it"
    if seen:
        yield "look-ups would find blocks that are gone"


def _check_ledger(environment: Environment, txn: Txn, sums: Ledger) -> Iterator[str]:
    try:
        ledger = read_ledger(environment, txn)
    except Damaged as error:
        yield f"the ledger is unreadable: {error}"
        return
    expected = replace(sums, clock_ms=ledger.clock_ms, sequence=ledger.sequence)
    if ledger != expected:
        yield f"the ledger says {ledger}, a recount {expected}"


def _strays(environment: Environment, txn: Txn, known: Collection[bytes]) -> list[bytes]:
    """Ids in the data keys that have no record."""
    strays: list[bytes] = []
    for key in txn.cursor(db=environment.dat).iternext(keys=True, values=False):
        id_ = bytes(key[1 : 1 + ID_BYTES])
        if id_ not in known and (not strays or strays[-1] != id_):
            strays.append(id_)
    return strays


def rebuild(environment: Environment, txn: Txn) -> int:
    """Make the store consistent inside a write transaction; return the number of blocks that were lost."""
    survey = _survey(environment, txn)
    for block in survey.lost_blocks:
        txn.delete(block, db=environment.idx)
    for key in survey.lost_points:
        txn.delete(key, db=environment.pnt)
    for name in survey.lost_manifests:
        txn.delete(name, db=environment.man)
    _let_go_of_lost_points(environment, txn, survey)
    entries = survey.entries
    for stray in _strays(environment, txn, entries):
        _delete_data(environment, txn, stray)
    old = {id_: _old_usage(environment, txn, id_) for id_ in entries}
    for table in (environment.kid, environment.use, environment.lru):
        txn.drop(table, delete=False)
    for block in survey.blocks:
        record = BlockRecord.decode(block, txn.get(block, b"", db=environment.idx))
        branches.insert(txn, environment.kid, record.parent, record.elements, block)
    sums = Ledger(n_blocks=len(survey.blocks), n_points=len(survey.points), n_manifests=survey.n_manifests)
    clock_ms = 0
    for id_, entry in entries.items():
        usage = survey.usage(id_, entry, old[id_])
        txn.put(id_, usage.encode(id_), db=environment.use)
        if usage.evictable:
            txn.put(lru_key(usage, id_), b"", db=environment.lru)
        sums = _counted(sums, usage)
        clock_ms = max(clock_ms, usage.last_used_ms)
    txn.put(b"ledger", replace(sums, clock_ms=clock_ms).encode(b"ledger"), db=environment.meta)
    return len(survey.lost_blocks)


def _let_go_of_lost_points(environment: Environment, txn: Txn, survey: _Survey) -> None:
    """Saves that held them go on without: a point that is captured there again is nobody's."""
    records = [(bytes(key), bytes(value)) for key, value in txn.cursor(db=environment.man)]
    for key, value in records:
        record = ManifestRecord.decode(key, value)
        if record.point and record.point[-ID_BYTES:] not in survey.points:
            txn.put(key, replace(record, point=b"").encode(key), db=environment.man)


def _old_usage(environment: Environment, txn: Txn, id_: bytes) -> Usage | None:
    try:
        return read_usage(environment, txn, id_)
    except Damaged:
        return None


def _delete_data(environment: Environment, txn: Txn, id_: bytes) -> None:
    prefix = b"B" + id_
    cursor = txn.cursor(db=environment.dat)
    while cursor.set_range(prefix) and bytes(cursor.key()[: len(prefix)]) == prefix:
        cursor.delete()
