"""Looking at a store without changing it: what is in it, does it fit together, are its bytes intact."""

import contextlib
from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from store.chain import ID_BYTES
from store.environment import Environment, Txn
from store.errors import Damaged
from store.fingerprint import Fingerprint, Value
from store.parts import MAX_PART_BYTES, read_segment
from store.points import all_points, read_point
from store.records import BlockRecord, PointRecord, unseal
from store.repair import inspect
from store.update import read_block


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found: counts of what was read, and one line per problem."""

    n_blocks: int
    n_points: int
    n_bytes: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FingerprintInfo:
    """A model and its settings as far as the store knows them, and the blocks and points stored under it."""

    id: bytes
    fields: tuple[tuple[str, Value], ...]
    n_blocks: int
    n_points: int
    n_bytes: int


def verify(environment: Environment, *, deep: bool) -> Verification:
    """Check that all tables agree and, when `deep`, every checksum. One short transaction per block."""
    problems = environment.read(lambda txn: inspect(environment, txn))
    blocks = environment.read(lambda txn: _block_ids(environment, txn))
    keys = environment.read(lambda txn: [key for key, _ in all_points(environment, txn)])
    n_bytes = 0
    buffers = _Buffers()
    for key in chain(blocks, keys) if deep else ():
        try:
            n_bytes += environment.read(partial(_read_all, environment, key=key, buffers=buffers))
        except Damaged as error:
            kind = "point" if len(key) > ID_BYTES else "block"
            problems.append(f"{kind} {key[-ID_BYTES:].hex()[:16]}: {error}")
    return Verification(len(blocks), len(keys), n_bytes, tuple(problems))


class _Buffers:
    """A destination that grows with the largest segment, and the scratch space of a part."""

    def __init__(self) -> None:
        self.scratch = np.empty(MAX_PART_BYTES, np.uint8)
        self.data = np.empty(0, np.uint8)

    def of(self, n_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        if self.data.size < n_bytes:
            self.data = np.empty(n_bytes, np.uint8)
        return self.data[:n_bytes]


def _block_ids(environment: Environment, txn: Txn) -> list[bytes]:
    return [bytes(key) for key in txn.cursor(db=environment.idx).iternext(keys=True, values=False)]


def _read_all(environment: Environment, txn: Txn, key: bytes, buffers: _Buffers) -> int:
    """Read and compare all bytes of a block by its id, or of a point by its key."""
    read = read_block if len(key) == ID_BYTES else read_point
    record = read(environment, txn, key)
    total = 0
    for segment in record.segments if record is not None else ():
        destination = buffers.of(segment.n_bytes)
        read_segment(txn, environment.dat, key[-ID_BYTES:], segment, destination, buffers.scratch)
        total += segment.n_bytes
    return total


def fingerprints(environment: Environment, txn: Txn) -> list[FingerprintInfo]:
    """All fingerprints ever used, with what is stored under each."""
    n_blocks: Counter[bytes] = Counter()
    n_points: Counter[bytes] = Counter()
    sizes: Counter[bytes] = Counter()
    for key, value in txn.cursor(db=environment.idx):
        with contextlib.suppress(Damaged):
            block = BlockRecord.decode(bytes(key), value)
            n_blocks[block.fingerprint] += 1
            sizes[block.fingerprint] += block.stored_bytes()
    for name, value in all_points(environment, txn):
        with contextlib.suppress(Damaged):
            point = PointRecord.decode(name, value)
            n_points[point.fingerprint] += 1
            sizes[point.fingerprint] += point.stored_bytes()
    found = []
    cursor = txn.cursor(db=environment.meta)
    if cursor.set_range(b"fp:"):
        for key, value in cursor:
            name = bytes(key)
            if not name.startswith(b"fp:"):
                break
            fields = Fingerprint.unpack(unseal(name, value)[1]).fields
            short = name[3:11]
            found.append(FingerprintInfo(name[3:], fields, n_blocks[short], n_points[short], sizes[short]))
    return found


def quarantine_notes(environment: Environment, txn: Txn) -> list[tuple[bytes, int, str]]:
    """``(block id, Unix ms, why)`` of everything that ever failed verification."""
    notes = []
    for key, value in txn.cursor(db=environment.qua):
        name = bytes(key)
        try:
            why = str(unseal(name, value)[1])
        except Damaged:
            why = "unreadable note"
        notes.append((name[:32], int.from_bytes(name[32:], "big"), why))
    return notes
