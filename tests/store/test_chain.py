"""The prefix chain: ids are part of the file format, so they are pinned and computed a second time here."""

import hashlib
import struct
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import chain


def reference_chain(fingerprint_id: bytes, ids: list[int]) -> list[bytes]:
    """The chain as the specification words it, without a shortcut."""

    def digest(data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=32, person=b"kvchain1").digest()

    previous = digest(b"\x00" + fingerprint_id)
    found = []
    for start in range(0, len(ids), 256):
        run = ids[start : start + 256]
        kind = b"\x01" if len(run) == 256 else b"\x02"
        elements = b"".join(struct.pack("<I", token) for token in run)
        previous = digest(kind + previous + struct.pack("<I", len(run)) + elements)
        found.append(previous)
    return found


@given(st.binary(min_size=32, max_size=32), st.lists(st.integers(0, 2**32 - 2), max_size=800))
def test_chain_equals_the_specification(fingerprint_id: bytes, ids: list[int]) -> None:
    elements = chain.encode_tokens(np.array(ids, np.int64))
    links = chain.chain(chain.root_id(fingerprint_id), elements)
    assert [block for block, _, _ in links] == reference_chain(fingerprint_id, ids)
    assert b"".join(part for _, _, part in links) == elements


def test_ids_never_change_between_releases() -> None:
    root = chain.root_id(b"\x01" * 32)
    links = chain.chain(root, chain.encode_tokens(np.arange(300, dtype=np.int32)))
    assert root.hex() == "59aa9fca9fccfa1ca6f2e628faac24db5e974bdbbef32d13493a70df5a35c297"
    assert [block.hex() for block, _, _ in links] == [
        "c677cfc03a1949eca60c483de1f84b710b7dad84c19579172cf33b8611b9f42f",
        "5d33f61c1189febbfecb58be402f1cd4f9cee7aea2338e400df8b84b099c2d7d",
    ]


@pytest.mark.parametrize("bad", [[-1], [2**32 - 1], [2**40]])
def test_ids_that_media_reserves_or_that_do_not_fit_are_refused(bad: list[int]) -> None:
    with pytest.raises(ValueError, match="token id"):
        chain.encode_tokens(np.array(bad))


def test_tokens_survive_encoding() -> None:
    ids = np.array([0, 1, 49_151, 2**31 - 1], np.int32)
    assert np.array_equal(chain.decode_tokens(chain.encode_tokens(ids)), ids)


@pytest.mark.parametrize("bad", [b"\x00\x00\x00", b"\xff\xff\xff\xff"])
def test_elements_that_are_not_tokens_are_refused(bad: bytes) -> None:
    with pytest.raises(ValueError):
        chain.decode_tokens(bad)


@given(st.lists(st.integers(0, 3), max_size=300), st.lists(st.integers(0, 3), max_size=300))
def test_common_positions_count_equal_leading_tokens(a: list[int], b: list[int]) -> None:
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    left, right = (chain.encode_tokens(np.array(ids, np.int64)) for ids in (a, b))
    assert chain.common_positions(left, right) == expected


def test_the_chain_of_a_long_context_takes_milliseconds() -> None:
    ids = np.random.default_rng(0).integers(0, 49_152, 131_072).astype(np.int32)
    root = chain.root_id(b"\0" * 32)
    best = min(_timed(root, ids) for _ in range(5))
    assert best < 0.02


def _timed(root: bytes, ids: np.ndarray) -> float:
    started = time.thread_time()
    chain.chain(root, chain.encode_tokens(ids))
    return time.thread_time() - started
