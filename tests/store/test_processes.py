"""One owner, any number of readers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from store import Damaged, Store, StoreBusy, StoreUnusable, WriteRefused
from store.records import seal
from store.schema import SCHEMA
from tests.store import kv

READ_BESIDE = """
import sys
from pathlib import Path
from store import Store
from tests.store import kv
with Store.open(Path(sys.argv[1]), read_only=True) as store:
    print(kv.restore(store, store.register(kv.FINGERPRINT), kv.tokens((1, 300))))
"""


def test_a_second_owner_is_told_who_the_first_is(tmp_path: Path, store: Store) -> None:
    command = f"from pathlib import Path; from store import Store; Store.open(Path({str(tmp_path)!r}))"
    second = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    message = second.stderr.strip().splitlines()[-1]
    assert f"is in use by process {os.getpid()}, running since 2" in message


def test_a_second_owner_in_one_process_is_refused_and_the_first_goes_on(tmp_path: Path, store: Store) -> None:
    with pytest.raises(StoreBusy) as caught:
        kv.open_store(tmp_path)
    assert caught.value.pid == os.getpid()
    kv.write(store, store.register(kv.FINGERPRINT), kv.tokens((1, 300)))


def test_reading_beside_the_owner(tmp_path: Path, store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 300)))
    reader = subprocess.run(
        [sys.executable, "-c", READ_BESIDE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert reader.stdout == "300\n", reader.stderr
    kv.write(store, root, kv.tokens((2, 300)))


def test_a_store_open_for_reading_refuses_to_change(tmp_path: Path) -> None:
    kv.open_store(tmp_path).close()
    with Store.open(tmp_path, read_only=True) as store:
        root = store.register(kv.FINGERPRINT)
        for call in (
            lambda: kv.Offer(store, root, kv.tokens((1, 300))),
            lambda: store.save_manifest("x", root, kv.tokens((1, 0))),
            lambda: store.administration.forget_all(),
        ):
            with pytest.raises(WriteRefused, match="reading only"):
                call()


def test_there_is_nothing_to_read_where_no_store_is(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="no store"):
        Store.open(tmp_path, read_only=True)
    assert not list(tmp_path.iterdir())


def test_a_short_file_is_not_mapped_for_reading(tmp_path: Path) -> None:
    with kv.open_store(tmp_path) as store:
        kv.write(store, store.register(kv.FINGERPRINT), kv.tokens((1, 300)))
    data = tmp_path / "store" / "data.mdb"
    os.truncate(data, data.stat().st_size // 2)
    with pytest.raises(Damaged, match="shorter"):
        Store.open(tmp_path, read_only=True)


def test_a_store_of_a_newer_program_is_left_alone(tmp_path: Path) -> None:
    with kv.open_store(tmp_path) as store:
        schema = seal(b"schema", (SCHEMA + 1, 0))
        store.writer.order(lambda u: u.txn.put(b"schema", schema, db=store.environment.meta), 60)
    before = (tmp_path / "store" / "data.mdb").read_bytes()
    with pytest.raises(StoreUnusable, match="newer"):
        kv.open_store(tmp_path)
    assert (tmp_path / "store" / "data.mdb").read_bytes() == before


def test_the_directory_is_closed_to_others(tmp_path: Path, store: Store) -> None:
    directory = tmp_path / "store"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o077 == 0 for file in directory.iterdir())


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_network_file_systems_are_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.opening._file_system", lambda path: kind)
    with pytest.raises(StoreUnusable, match=f"is on {kind}"):
        kv.open_store(tmp_path)
    kv.open_store(tmp_path, allow_network=True).close()


def test_a_clean_stop_needs_no_look_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv.open_store(tmp_path).close()

    def fail(directory: Path) -> tuple[int, str]:
        raise AssertionError("a cleanly stopped store was probed")

    monkeypatch.setattr("store.opening._run_probe", fail)
    kv.open_store(tmp_path).close()
    (tmp_path / "store" / "owner.lock").write_text("{")
    with pytest.raises(AssertionError):
        kv.open_store(tmp_path)


def test_a_file_that_somebody_changed_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv.open_store(tmp_path).close()
    os.utime(tmp_path / "store" / "data.mdb")
    looked: list[Path] = []

    def probe(directory: Path) -> tuple[int, str]:
        looked.append(directory)
        return 0, ""

    monkeypatch.setattr("store.opening._run_probe", probe)
    kv.open_store(tmp_path).close()
    assert looked == [tmp_path / "store"]


@pytest.mark.parametrize(
    ("ending", "what"),
    [
        ("kill -TERM $$", "signal 15"),
        ("kill -KILL $$", "signal 9"),
        ("echo ImportError: no lmdb >&2; exit 1", "ImportError: no lmdb"),
        ("exit 2", "unknown"),
        ("exit 130", "unknown"),
    ],
)
def test_a_look_that_was_interrupted_or_could_not_begin_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, what: str
) -> None:
    """Ctrl-C and a stop of the service reach the child too: that says nothing about the file."""
    prompt = kv.tokens((1, 300))
    with kv.open_store(tmp_path) as store:
        kv.write(store, store.register(kv.FINGERPRINT), prompt)
    (tmp_path / "store" / "owner.lock").write_text("{")
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{ending}\n")
    program.chmod(0o700)
    with monkeypatch.context() as patch, pytest.raises(StoreUnusable, match=f"could not be examined.*{what}"):
        patch.setattr("sys.executable", str(program))
        kv.open_store(tmp_path)
    with kv.open_store(tmp_path) as store:
        assert store.statistics().rebuilt == 0
        assert kv.restore(store, store.register(kv.FINGERPRINT), prompt) == len(prompt)


def test_a_file_that_kills_its_reader_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kv.open_store(tmp_path).close()
    (tmp_path / "store" / "owner.lock").write_text("{")
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -BUS $$\n")
    program.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(program))
    with kv.open_store(tmp_path) as store:
        assert store.statistics().rebuilt == 1
    assert (tmp_path / "store" / "quarantine" / "data.mdb").exists()


def test_a_path_that_cannot_be_a_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="cannot use"):
        Store.open(tmp_path / "file")
