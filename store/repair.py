"""Is the store consistent, and making it so again: everything is derived anew from the block records.

`idx` and `man` are the truth. A block record that is unreadable, or whose parent is gone, is dropped with its
bytes; usage, order of eviction, branches and ledger are recomputed. Damage inside the bytes of a block is
found when they are read (or by `emberd store verify`), not here.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from store import branches
from store.chain import ID_BYTES
from store.environment import Environment, Txn
from store.errors import Damaged
from store.records import BlockRecord, Ledger, ManifestRecord, Usage
from store.update import lru_key, read_ledger, read_usage


@dataclass(frozen=True, slots=True)
class _Block:
    parent: bytes
    index: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class _Survey:
    """What the truth says: sound blocks, ids of unusable ones, references by saves, names of broken saves."""

    blocks: dict[bytes, _Block]
    lost: list[bytes]
    refs: Counter[bytes]
    n_children: Counter[bytes]
    n_manifests: int
    lost_manifests: list[bytes]

    def usage(self, block: bytes, old: Usage | None) -> Usage:
        known = old or Usage(0, 0, 0, 0, 0)
        return replace(
            known,
            refs=self.refs[block],
            n_children=self.n_children[block],
            n_bytes=self.blocks[block].n_bytes,
        )


def _survey(environment: Environment, txn: Txn) -> _Survey:
    blocks: dict[bytes, _Block] = {}
    lost: list[bytes] = []
    for key, value in txn.cursor(db=environment.idx):
        block = bytes(key)
        try:
            record = BlockRecord.decode(block, value)
            blocks[block] = _Block(record.parent, record.index, record.stored_bytes())
        except (Damaged, TypeError):
            lost.append(block)
    for block, found in sorted(blocks.items(), key=lambda item: item[1].index):
        parent = blocks.get(found.parent)
        if found.index and (parent is None or parent.index != found.index - 1):
            lost.append(block)
            del blocks[block]
    n_children = Counter(found.parent for found in blocks.values() if found.index)
    refs: Counter[bytes] = Counter()
    names, lost_manifests = 0, []
    for key, value in txn.cursor(db=environment.man):
        try:
            refs.update(set(ManifestRecord.decode(bytes(key), value).ids))
            names += 1
        except (Damaged, TypeError):
            lost_manifests.append(bytes(key))
    return _Survey(blocks, lost, refs, n_children, names, lost_manifests)


def inspect(environment: Environment, txn: Txn) -> list[str]:
    """What does not fit together, one line each; empty when the store is consistent."""
    survey = _survey(environment, txn)
    problems = [f"block record {block.hex()[:16]} is unreadable or has no parent" for block in survey.lost]
    problems += [f"the save {key.decode(errors='replace')!r} is unreadable" for key in survey.lost_manifests]
    live = pinned = evictable = 0
    for block in survey.blocks:
        try:
            usage = read_usage(environment, txn, block)
        except Damaged:
            usage = None
        expected = survey.usage(block, usage)
        if usage != expected:
            problems.append(f"usage of block {block.hex()[:16]} is wrong")
        live += expected.n_bytes
        pinned += expected.n_bytes if expected.refs else 0
        if expected.evictable:
            evictable += 1
            if txn.get(lru_key(expected, block), db=environment.lru) is None:
                problems.append(f"block {block.hex()[:16]} is missing in the order of eviction")
    if txn.stat(environment.lru)["entries"] != evictable:
        problems.append("the order of eviction has entries of blocks that are gone")
    if txn.stat(environment.use)["entries"] != len(survey.blocks):
        problems.append("usage records without a block")
    problems += _check_branches(environment, txn, survey)
    problems += _check_ledger(environment, txn, (live, pinned, len(survey.blocks), survey.n_manifests))
    problems += [f"bytes without a block: {block.hex()[:16]}" for block in _strays(environment, txn, survey)]
    return problems


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


def _check_ledger(environment: Environment, txn: Txn, sums: tuple[int, int, int, int]) -> Iterator[str]:
    try:
        ledger = read_ledger(environment, txn)
    except Damaged as error:
        yield f"the ledger is unreadable: {error}"
        return
    found = (ledger.live_bytes, ledger.pinned_bytes, ledger.n_blocks, ledger.n_manifests)
    if found != sums:
        yield f"the ledger says {found}, a recount {sums}"


def _strays(environment: Environment, txn: Txn, survey: _Survey) -> list[bytes]:
    """Ids in the data keys that have no block record."""
    strays: list[bytes] = []
    for key in txn.cursor(db=environment.dat).iternext(keys=True, values=False):
        block = bytes(key[1 : 1 + ID_BYTES])
        if block not in survey.blocks and (not strays or strays[-1] != block):
            strays.append(block)
    return strays


def rebuild(environment: Environment, txn: Txn) -> int:
    """Make the store consistent inside a write transaction; return the number of blocks that were lost."""
    survey = _survey(environment, txn)
    for block in survey.lost:
        txn.delete(block, db=environment.idx)
    for name in survey.lost_manifests:
        txn.delete(name, db=environment.man)
    for block in _strays(environment, txn, survey):
        _delete_data(environment, txn, block)
    usages = {block: _old_usage(environment, txn, block) for block in survey.blocks}
    for table in (environment.kid, environment.use, environment.lru):
        txn.drop(table, delete=False)
    live = pinned = 0
    for block, old in usages.items():
        record = BlockRecord.decode(block, txn.get(block, b"", db=environment.idx))
        branches.insert(txn, environment.kid, record.parent, record.elements, block)
        usage = survey.usage(block, old)
        txn.put(block, usage.encode(block), db=environment.use)
        if usage.evictable:
            txn.put(lru_key(usage, block), b"", db=environment.lru)
        live += usage.n_bytes
        pinned += usage.n_bytes if usage.refs else 0
    clock_ms = max((usage.last_used_ms for usage in usages.values() if usage), default=0)
    ledger = Ledger(live, len(survey.blocks), survey.n_manifests, pinned, clock_ms)
    txn.put(b"ledger", ledger.encode(b"ledger"), db=environment.meta)
    return len(survey.lost)


def _old_usage(environment: Environment, txn: Txn, block: bytes) -> Usage | None:
    try:
        return read_usage(environment, txn, block)
    except Damaged:
        return None


def _delete_data(environment: Environment, txn: Txn, block: bytes) -> None:
    prefix = b"B" + block
    cursor = txn.cursor(db=environment.dat)
    while cursor.set_range(prefix) and bytes(cursor.key()[: len(prefix)]) == prefix:
        cursor.delete()
