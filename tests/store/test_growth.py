"""The file is ahead of what is used of it, on the disk and in memory, and nobody suffers for that."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store import Store
from store.environment import Environment
from store.growth import AHEAD_BYTES, STEP_BYTES, Growth
from store.mapping import Mapping
from tests.store import kv

MIB = 1 << 20
SCALE = 64
BUDGET = 1 << 30


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """One that holds about 4 MiB."""
    with kv.open_store(tmp_path, BUDGET) as opened:
        kv.write(opened, opened.register(kv.FINGERPRINT), kv.tokens((1, 1500)), scale=SCALE)
        yield opened


def _to_the_end(growth: Growth) -> int:
    """How many steps there were."""
    n_steps = 1
    while growth.step():
        n_steps += 1
    return n_steps


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_after_a_write_the_file_is_twice_as_long_as_what_is_used(store: Store) -> None:
    used = store.environment.used_bytes()
    assert used > 4 * MIB
    _until(lambda: store.environment.file_bytes() == 2 * used)
    blocks = store.environment.data_file.stat().st_blocks * 512
    assert blocks >= 2 * used


def test_what_is_written_next_needs_no_longer_file(store: Store) -> None:
    _until(lambda: store.environment.file_bytes() > store.environment.used_bytes() + 4 * MIB)
    before = store.environment.file_bytes()
    kv.write(store, store.register(kv.FINGERPRINT), kv.tokens((2, 700)), scale=SCALE)
    assert store.environment.used_bytes() < before
    assert kv.restore(store, store.register(kv.FINGERPRINT), kv.tokens((2, 700)), SCALE) == 700


def test_steps_are_small_and_come_to_an_end(store: Store) -> None:
    _until(lambda: store.environment.file_bytes() > store.environment.used_bytes() + 4 * MIB)
    used = store.environment.used_bytes()
    growth = Growth(store.environment, BUDGET, 0)
    assert _to_the_end(growth) == (2 * used - 1) // STEP_BYTES - used // STEP_BYTES + 2
    assert not growth.step()
    assert store.environment.file_bytes() <= used + AHEAD_BYTES


def test_no_file_passes_its_budget_for_it(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 6 * MIB) as store:
        kv.write(store, store.register(kv.FINGERPRINT), kv.tokens((1, 1500)), scale=SCALE)
        used = store.environment.used_bytes()
        _to_the_end(Growth(store.environment, 6 * MIB, 0))
        assert used < store.environment.file_bytes() == 6 * MIB
        _to_the_end(Growth(store.environment, used // 2, 0))
        assert store.environment.file_bytes() == 6 * MIB


def test_where_others_need_the_disk_the_file_does_not_grow(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 6 * MIB) as store:
        kv.write(store, store.register(kv.FINGERPRINT), kv.tokens((1, 1500)), scale=SCALE)
        _to_the_end(Growth(store.environment, 6 * MIB, 0))
        _to_the_end(Growth(store.environment, BUDGET, 1 << 60))
        assert store.environment.file_bytes() == 6 * MIB
        _to_the_end(Growth(store.environment, BUDGET, 0))
        assert store.environment.file_bytes() == 2 * store.environment.used_bytes() > 6 * MIB


def test_a_disk_that_refuses_costs_nobody_anything(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("store.growth.os.posix_fallocate", refuse)
    root = store.register(kv.FINGERPRINT)
    for seed in range(2, 6):
        kv.write(store, root, kv.tokens((seed, 1500)), scale=SCALE)
    assert not Growth(store.environment, BUDGET, 0).step()
    assert store.condition() == ("ok", "")
    assert kv.restore(store, root, kv.tokens((5, 1500)), SCALE) == 1500


def test_a_file_that_is_gone_is_left_to_others(store: Store) -> None:
    store.environment.data_file.unlink()
    assert not Growth(store.environment, BUDGET, 0).step()
    assert not store.environment.data_file.exists()


def test_populated_bytes_are_mapped_and_absent_ones_are_refused(store: Store) -> None:
    _until(lambda: store.environment.file_bytes() > store.environment.used_bytes() + 4 * MIB)
    mapping = Mapping(store.environment.data_file)
    size = store.environment.file_bytes()
    assert mapping.populate(0, MIB)
    assert mapping.populate(size - MIB, MIB)
    assert not mapping.populate(size + MIB, MIB)


def test_a_file_that_is_mapped_anew_is_looked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Path] = []

    class Noted(Mapping):
        def __init__(self, path: Path) -> None:
            found.append(path)
            super().__init__(path)

    monkeypatch.setattr("store.growth.Mapping", Noted)
    environment = Environment(tmp_path, create=True, budget_bytes=BUDGET)
    environment.write(lambda txn: txn.put(b"k", bytes(MIB), db=environment.meta))
    growth = Growth(environment, BUDGET, 0)
    _to_the_end(growth)
    assert not growth.step() and len(found) == 1
    environment.reopen(create=False)
    _to_the_end(growth)
    assert len(found) == 2
    environment.close(1.0)


def test_huge_pages_are_not_wanted_any_more_when_the_file_has_grown(store: Store) -> None:
    _until(lambda: store.environment.file_bytes() > store.environment.used_bytes() + 4 * MIB)
    _to_the_end(Growth(store.environment, BUDGET, 0))
    file, flags = str(store.environment.data_file), []
    of_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *rest = line.split()
        if not key.endswith(":"):
            of_it = rest[-1:] == [file]
        elif of_it and key == "VmFlags:":
            flags.append(rest)
    assert flags and not any("hg" in of_part for of_part in flags)


def test_a_file_that_is_not_mapped_cannot_be_populated(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(MIB))
    assert not Mapping(tmp_path / "file").populate(0, MIB)
    assert not Mapping(tmp_path / "absent").populate(0, MIB)
