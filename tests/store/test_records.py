"""Records come back as they were, or are called damaged; nothing else can come out of bytes from the disk."""

import msgpack
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from store.errors import Damaged
from store.records import (
    MAX_RECORD_BYTES,
    BlockRecord,
    Ledger,
    ManifestRecord,
    PointRecord,
    Record,
    SegmentRecord,
    Usage,
    seal,
    unseal,
)

SEGMENTS = (
    SegmentRecord("full", "f16", 0, 2_000_000, 1_048_560, b"s" * 32),
    SegmentRecord("w", "f16", 1, 16, 16, b"t" * 16),
)
EXAMPLES: tuple[Record, ...] = (
    BlockRecord(b"f" * 8, b"p" * 32, 3, b"\1\0\0\0" * 256, SEGMENTS, 1_700_000_000_000),
    BlockRecord(b"f" * 8, b"p" * 32, 3, b"\1\0\0\0" * 9, (), 1_700_000_000_000, rowless=True),
    PointRecord(b"f" * 8, b"p" * 32, 777, b"\1\0\0\0" * 9, SEGMENTS, 1_700_000_000_000),
    Usage(1, 2, 3, 4, 5, b"place"),
    Ledger(1, 2, 3, 4, 5, 6),
    ManifestRecord(b"f" * 32, b"r" * 32, 300, b"i" * 64, "note", "model", 7),
)

IDS = [f"{i}-{type(record).__name__}" for i, record in enumerate(EXAMPLES)]


@pytest.mark.parametrize("record", EXAMPLES, ids=IDS)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert type(record).decode(b"key", record.encode(b"key")) == record


@pytest.mark.parametrize("record", EXAMPLES, ids=IDS)
def test_every_flipped_bit_of_a_record_is_noticed(record: Record) -> None:
    sound = record.encode(b"key")
    for at in range(0, len(sound) * 8, 7):
        broken = bytearray(sound)
        broken[at // 8] ^= 1 << at % 8
        with pytest.raises(Damaged):
            type(record).decode(b"key", bytes(broken))


def test_a_record_under_another_key_is_noticed() -> None:
    with pytest.raises(Damaged):
        Usage.decode(b"b", Usage(1, 2, 3, 4, 5).encode(b"a"))


def test_fields_that_a_later_version_appended_are_ignored() -> None:
    assert Usage.decode(b"k", seal(b"k", (1, 1, 2, 3, 4, 5, b"p", "new"))) == Usage(1, 2, 3, 4, 5, b"p")


def test_fields_that_an_earlier_version_lacked_have_their_defaults() -> None:
    assert Usage.decode(b"k", seal(b"k", (1, 1, 2, 3, 4, 5))) == Usage(1, 2, 3, 4, 5, b"")
    bare = (1, b"f" * 8, b"p" * 32, 3, b"\1\0\0\0" * 256, (), 7)
    assert not BlockRecord.decode(b"k", seal(b"k", bare)).is_restorable
    assert BlockRecord.decode(b"k", seal(b"k", (*bare, True))).is_restorable


@pytest.mark.parametrize("fields", [(2, 1, 2, 3, 4, 5), (1, 1, 2), ("1", 1, 2, 3, 4, 5)])
def test_another_version_or_too_few_fields_are_a_miss(fields: tuple[object, ...]) -> None:
    with pytest.raises(Damaged):
        Usage.decode(b"k", seal(b"k", fields))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_as_damage(data: bytes) -> None:
    with pytest.raises(Damaged):
        BlockRecord.decode(b"key", data)


@given(st.recursive(st.none() | st.integers(-5, 5) | st.binary(max_size=5), st.lists, max_leaves=10))
def test_any_sealed_value_is_a_record_or_damage(value: object) -> None:
    body = msgpack.packb(value)
    sealed = body + xxhash.xxh3_64_digest(body, seed=xxhash.xxh3_64_intdigest(b"key"))
    try:
        BlockRecord.decode(b"key", sealed)
    except Damaged:
        return
    raise AssertionError("bytes that are no block record were taken for one")


def test_an_absurd_length_is_refused_before_it_is_read() -> None:
    with pytest.raises(Damaged, match="bytes"):
        unseal(b"k", memoryview(bytes(MAX_RECORD_BYTES + 1)))


def test_stored_bytes_count_whole_pages() -> None:
    one_part = SegmentRecord("g", "l", 0, 1_048_560, 1_048_560, b"s" * 16)
    record = BlockRecord(b"f" * 8, b"p" * 32, 0, b"\0" * 1024, (one_part,), 0)
    assert 256 * 4096 < record.stored_bytes() < 256 * 4096 + 4096
