"""When the disk or the file fails, requests go on, the store says so, and it comes back by itself."""

import contextlib
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from store import Outcome, Store, StoreUnusable, WriteRefused
from store.breaker import LONGEST_PAUSE_S, Breaker
from store.environment import Environment
from store.recovery import Recovery
from tests.disks import memory_disk
from tests.store import kv


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle checks every 50 ms instead of every 5 s."""
    monkeypatch.setattr("store.writer.IDLE_S", 0.05)


def test_the_breaker_waits_twice_as_long_each_time() -> None:
    breaker = Breaker(first_pause_s=30)
    pauses = []
    for now in range(0, 8000, 1000):
        breaker.fail(now, "disk")
        pauses.append(breaker.retry_at - now)
    assert pauses == [30, 60, 120, 240, 480, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    breaker.succeed()
    assert not breaker.is_open
    breaker.fail(0, "disk")
    assert breaker.retry_at == 30


@pytest.fixture
def may_recover(impatient: None, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The store looks whether its disk works again only once this is set: trouble lasts until it was seen."""
    allowed = threading.Event()
    try_again = Recovery.try_again

    def try_if_allowed(recovery: Recovery) -> None:
        if allowed.is_set():
            try_again(recovery)

    monkeypatch.setattr(Recovery, "try_again", try_if_allowed)
    return allowed


@pytest.mark.parametrize("error", [lmdb.DiskError("disk"), OSError(5, "Input/output error"), lmdb.Error("x")])
def test_a_failed_commit_degrades_the_store_until_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_recover: threading.Event, error: Exception
) -> None:
    with kv.open_store(tmp_path, retry_s=0.2) as store:
        root = store.register(kv.FINGERPRINT)
        prompt = kv.tokens((1, 300))
        kv.write(store, root, prompt)
        assert store.flush(120)

        def fail(call: object) -> None:
            raise error

        with monkeypatch.context() as broken:
            broken.setattr(store.environment, "write", fail)
            lost = kv.Offer(store, root, kv.tokens((2, 300))).wait()
            assert lost.outcome is Outcome.DROPPED
            assert store.statistics().state == "degraded" and str(error) in store.statistics().reason
            refused = kv.Offer(store, root, kv.tokens((3, 300)))
            assert refused.results and str(error) in refused.results[0].reason
            with pytest.raises(WriteRefused, match="read-only"):
                store.save_manifest("x", root, prompt)
            assert kv.restore(store, root, prompt) == 300
        may_recover.set()
        eventually(lambda: store.statistics().state == "ok")
        kv.write(store, root, kv.tokens((2, 300)))
        assert kv.restore(store, root, prompt) == 300


def test_a_store_deleted_under_the_daemon_is_noticed_and_made_anew(
    tmp_path: Path, may_recover: threading.Event
) -> None:
    with kv.open_store(tmp_path, retry_s=0.2) as store:
        root = store.register(kv.FINGERPRINT)
        kv.write(store, root, kv.tokens((1, 300)))
        shutil.rmtree(tmp_path / "store")
        eventually(lambda: store.statistics().state == "degraded")
        assert "removed" in store.statistics().reason
        may_recover.set()
        eventually(lambda: store.statistics().state == "ok")
        assert kv.restore(store, root, kv.tokens((1, 300))) == 0
        kv.write(store, root, kv.tokens((1, 300)))
        store.save_manifest("x", root, kv.tokens((1, 300)))
    with kv.open_store(tmp_path) as store:
        assert store.statistics().rebuilt == 0
        assert store.manifest("x", kv.FINGERPRINT).n_restorable == 300


def test_a_store_whose_parent_is_gone_waits_for_it(tmp_path: Path, may_recover: threading.Event) -> None:
    state = tmp_path / "state"
    with kv.open_store(state, retry_s=0.1) as store:
        root = store.register(kv.FINGERPRINT)
        shutil.rmtree(state)
        state.write_text("in the way")
        may_recover.set()
        eventually(lambda: store.statistics().state != "ok")
        assert kv.Offer(store, root, kv.tokens((1, 300))).wait().outcome is Outcome.DROPPED
        assert kv.restore(store, root, kv.tokens((1, 300))) == 0
        state.unlink()
        eventually(lambda: store.statistics().state == "ok")
        kv.write(store, root, kv.tokens((1, 300)))


def test_a_wrong_ledger_is_repaired_while_requests_go_on(store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 300)))
    environment = store.environment
    store.writer.order(lambda update: update.txn.delete(b"ledger", db=environment.meta), 60)

    def spoil(update: object) -> None:
        update.txn.drop(environment.lru, delete=False)  # type: ignore[attr-defined]
        update.txn.drop(environment.use, delete=False)  # type: ignore[attr-defined]

    store.writer.order(spoil, 60)
    kv.write(store, root, kv.tokens((1, 300), (2, 300)))
    assert store.statistics().rebuilt == 1
    assert not kv.problems(store)
    assert kv.restore(store, root, kv.tokens((1, 300), (2, 300))) == 600


def test_a_writer_that_dies_takes_only_the_store_with_it(
    store: Store, root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(store.environment, "write", fail)
    assert kv.Offer(store, root, kv.tokens((1, 300))).wait().outcome is Outcome.DROPPED
    eventually(lambda: store.statistics().state == "off")
    assert "a bug" in store.statistics().reason
    assert kv.Offer(store, root, kv.tokens((1, 300))).wait().outcome is Outcome.DROPPED
    assert store.lookup(root, kv.tokens((1, 300))).n_tokens == 0


def test_a_disk_that_does_not_answer_is_told_of_until_it_does(
    store: Store, root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that hangs raises nothing, and the thread that hangs can tell nobody."""
    monkeypatch.setattr("store.writer.SLOW_S", 0.1)
    kv.write(store, root, kv.tokens((1, 300)))
    assert store.flush(120) and store.condition() == ("ok", "")
    answers = threading.Event()
    write = store.environment.write
    monkeypatch.setattr(store.environment, "write", lambda call: (answers.wait(20), write(call))[1])
    offer = kv.Offer(store, root, kv.tokens((2, 300)))
    eventually(lambda: store.condition()[0] == "degraded")
    assert "has not answered for" in store.condition()[1]
    assert store.silence_s > 0.1 and "run_update" in store.stack()
    assert kv.restore(store, root, kv.tokens((1, 300))) == 300
    answers.set()
    assert offer.wait().outcome is Outcome.WRITTEN
    eventually(lambda: store.condition() == ("ok", "") and not store.silence_s)


@pytest.mark.usefixtures("impatient")
def test_a_file_that_may_not_grow_costs_no_request_and_is_recovered_from(tmp_path: Path) -> None:
    """`RLIMIT_FSIZE`: writing fails with another error than on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with kv.open_store(tmp_path, 40 << 20, retry_s=0.1) as store:
        root = store.register(kv.FINGERPRINT)
        kv.write(store, root, kv.tokens((1, 700)), scale=8)
        kv.blocks_of(kv.tokens((2, 700)), 40)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
            assert kv.Offer(store, root, kv.tokens((2, 700)), scale=40).wait().outcome is Outcome.DROPPED
            assert store.statistics().state == "degraded"
            assert kv.restore(store, root, kv.tokens((1, 700)), 8) == 700
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        eventually(lambda: store.statistics().state == "ok")
        kv.write(store, root, kv.tokens((2, 700)), scale=40)
        assert kv.restore(store, root, kv.tokens((1, 700)), 8) == 700
        assert not kv.problems(store)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB of its own, which needs root."""
    with memory_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_full_disk_costs_no_request_and_is_recovered_from(small_disk: Path) -> None:
    with kv.open_store(small_disk, 40 << 20, retry_s=0.2) as store:
        root = store.register(kv.FINGERPRINT)
        kept = kv.tokens((100, 700))
        kv.write(store, root, kept, scale=40)
        store.save_manifest("kept", root, kept)
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file:
            while shutil.disk_usage(small_disk).free > 3 << 20:
                file.write(bytes(1 << 20))
                file.flush()
        outcomes = [
            kv.Offer(store, root, kv.tokens((seed, 700)), scale=40).wait().outcome for seed in range(12)
        ]
        assert Outcome.DROPPED in outcomes
        assert store.statistics().state == "degraded"
        assert kv.restore(store, root, kept, 40) == 700
        ballast.unlink()
        eventually(lambda: store.statistics().state == "ok")
        for seed in range(12):
            kv.write(store, root, kv.tokens((seed, 700)), scale=40)
        assert kv.restore(store, root, kept, 40) == 700
        assert not kv.problems(store)
    with kv.open_store(small_disk, 40 << 20) as store:
        assert store.administration.verify(deep=True).problems == ()


OPEN = "import sys; from pathlib import Path; from store import Store; Store.open(Path(sys.argv[1])).close()"
COMPACT = (
    "import sys; from pathlib import Path; from store.compaction import compact_store; "
    "compact_store(Path(sys.argv[1]))"
)


@pytest.mark.slow
def test_nobody_dies_of_a_disk_that_was_full_before(small_disk: Path) -> None:
    """Parts of the store are mapped: in another process, since it would be killed."""
    kept = kv.tokens((1, 700))
    with kv.open_store(small_disk / "old", 20 << 20) as store:
        kv.write(store, store.register(kv.FINGERPRINT), kept)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    for folder, call in (("new", OPEN), ("old", COMPACT)):
        done = subprocess.run(
            [sys.executable, "-c", call, str(small_disk / folder)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 1 and "No space left on device" in done.stderr.splitlines()[-1]
    ballast.unlink()
    with kv.open_store(small_disk / "old", 20 << 20) as store:
        assert kv.restore(store, store.register(kv.FINGERPRINT), kept) == 700
    with kv.open_store(small_disk / "new", 20 << 20) as store:
        assert store.condition() == ("ok", "")


def test_without_room_for_the_table_of_readers_no_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("store.environment.os.posix_fallocate", refuse)
    with pytest.raises(StoreUnusable, match="No space left on device"):
        Environment(tmp_path, create=True)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    Environment(tmp_path, create=True).close(1.0)
    # Its table has room now, and nobody asks for more.
    monkeypatch.setattr("store.environment.os.posix_fallocate", refuse)
    Environment(tmp_path).close(1.0)


@pytest.mark.slow
def test_a_disk_that_fills_by_the_store_itself_is_no_failure(small_disk: Path) -> None:
    """With a reserve to leave alone, the store stops growing before the disk is full."""
    with kv.open_store(small_disk, 1 << 30, min_free_bytes=16 << 20) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(60):
            kv.write(store, root, kv.tokens((seed, 700)), scale=40)
        assert shutil.disk_usage(small_disk).free > 12 << 20
        assert store.statistics().evicted > 0


@pytest.mark.slow
def test_a_read_only_file_system_cannot_be_owned_but_can_be_read(small_disk: Path) -> None:
    with kv.open_store(small_disk, 40 << 20) as store:
        kv.write(store, store.register(kv.FINGERPRINT), kv.tokens((1, 700)))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreUnusable, match="Read-only"):
        kv.open_store(small_disk)
    with Store.open(small_disk, read_only=True) as store:
        assert kv.restore(store, store.register(kv.FINGERPRINT), kv.tokens((1, 700))) == 700
