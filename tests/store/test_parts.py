"""Segments in parts: of whole tiles where they fit, each verified alone and only in its place."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.environment import Environment
from store.errors import Damaged
from store.parts import (
    MAX_PART_BYTES,
    delete_segment,
    part_bytes,
    part_key,
    part_sizes,
    read_segment,
    write_segment,
)

BLOCK = bytes(range(32))


@given(st.integers(1, 5 * MAX_PART_BYTES))
def test_a_part_is_whole_tiles_or_as_large_as_allowed(unit: int) -> None:
    size = part_bytes(unit)
    assert 0 < size <= MAX_PART_BYTES
    if unit <= MAX_PART_BYTES:
        assert size % unit == 0 and size + unit > MAX_PART_BYTES


@given(st.integers(1, 4 * MAX_PART_BYTES), st.integers(1, MAX_PART_BYTES).filter(lambda size: size > 5000))
def test_parts_add_up(n_bytes: int, size: int) -> None:
    sizes = part_sizes(n_bytes, size)
    assert sum(sizes) == n_bytes and all(each == size for each in sizes[:-1])


def test_only_what_is_wanted_is_read_and_all_of_it_is_verified(tmp_path: Path) -> None:
    environment = Environment(tmp_path, create=True)
    data = np.random.default_rng(0).integers(0, 256, 3 * MAX_PART_BYTES + 5).astype(np.uint8)
    scratch = np.empty(MAX_PART_BYTES, np.uint8)
    segment = environment.write(
        lambda txn: write_segment(txn, environment.dat, BLOCK, 0, "g", "l", MAX_PART_BYTES, data)
    )
    assert segment.n_parts == 4

    def read(n_bytes: int) -> np.ndarray:  # type: ignore[type-arg]
        wanted = np.zeros(n_bytes, np.uint8)
        environment.read(lambda txn: read_segment(txn, environment.dat, BLOCK, segment, wanted, scratch))
        return wanted

    for n_bytes in (1, MAX_PART_BYTES - 1, MAX_PART_BYTES, MAX_PART_BYTES + 1, data.size):
        assert np.array_equal(read(n_bytes), data[:n_bytes])
    swap_parts(environment, 1, 2)
    assert np.array_equal(read(MAX_PART_BYTES), data[:MAX_PART_BYTES])
    for n_bytes in (MAX_PART_BYTES + 1, data.size):
        with pytest.raises(Damaged, match="part 1 of segment g does not match"):
            read(n_bytes)
    environment.write(lambda txn: delete_segment(txn, environment.dat, BLOCK, segment))
    assert environment.read(lambda txn: txn.stat(environment.dat)["entries"]) == 0
    with pytest.raises(Damaged, match="missing"):
        read(1)
    environment.close(1)


def swap_parts(environment: Environment, a: int, b: int) -> None:
    """Exchange two parts of equal length, each with a right checksum of its own."""
    keys = [part_key(BLOCK, 0, part) for part in (a, b)]

    def body(txn: object) -> None:
        values = [np.frombuffer(txn.get(key, db=environment.dat), np.uint8).copy() for key in keys]  # type: ignore[attr-defined]
        for key, value in zip(keys, reversed(values), strict=True):
            txn.put(key, value.data, db=environment.dat)  # type: ignore[attr-defined]

    environment.write(body)
