"""A damaged file: never a wrong byte, never the death of the process, and the store goes on.

Every trial runs in a child, so that a signal is a result and not the end of the test.
"""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from store import Fingerprint, Store
from store.datafile import read_meta
from store.update import Update
from tests.store import kv

READER = Path(__file__).with_name("damage_reader.py")
PAGE = 4096


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The data file of a store with four prompts and a save, closed cleanly."""
    folder = tmp_path_factory.mktemp("sound")
    with kv.open_store(folder) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(4):
            kv.write(store, root, kv.tokens((1, 300), (seed, 400)), scale=8, points=(200, 600))
        store.save_manifest("mine", root, kv.tokens((1, 300), (2, 400)))
    return (folder / "store" / "data.mdb").read_bytes()


def outcome(folder: Path, data: bytes, *, claim_clean: bool) -> str:
    """What a daemon makes of `data`: how many tokens it restored, all checked; fails on a wrong byte."""
    directory = folder / "store"
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.*"):
        old.unlink()
    (directory / "data.mdb").write_bytes(data)
    if claim_clean:
        status = (directory / "data.mdb").stat()
        note = {"pid": 1, "since": "", "clean": [status.st_size, status.st_mtime_ns]}
        (directory / "owner.lock").write_text(json.dumps(note))
    child = subprocess.run(
        [sys.executable, str(READER), str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert child.returncode == 0, f"exit {child.returncode}: {child.stderr[-2000:]}"
    return child.stdout.strip()


def flipped(data: bytes, rng: random.Random) -> bytes:
    broken = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(broken))
        broken[at] ^= 1 << rng.randrange(8)
    return bytes(broken)


def zeroed(data: bytes, rng: random.Random) -> bytes:
    broken = bytearray(data)
    start = rng.randrange(2 * PAGE, len(broken))
    length = rng.choice((1, 16, 512, PAGE, 8 * PAGE))
    broken[start : start + length] = bytes(len(broken[start : start + length]))
    return bytes(broken)


def scrambled_pages(data: bytes, rng: random.Random) -> bytes:
    """Two pages change places, as after a misdirected write."""
    pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
    a, b = rng.sample(range(2, len(pages)), 2)
    pages[a], pages[b] = pages[b], pages[a]
    return b"".join(pages)


HARMS = {"flips": flipped, "zeros": zeroed, "pages": scrambled_pages}


def try_harm(folder: Path, sound: bytes, how: str, trials: int, *, claim_clean: bool) -> Counter[str]:
    rng = random.Random(how)
    found: Counter[str] = Counter()
    for _ in range(trials):
        found[outcome(folder, HARMS[how](sound, rng), claim_clean=claim_clean)] += 1
    return found


def test_a_sound_file_gives_everything_back(tmp_path: Path, sound: bytes) -> None:
    assert outcome(tmp_path, sound, claim_clean=True) == "2800 of 2800, 0 rebuilt"


@pytest.mark.parametrize("how", HARMS)
def test_some_harmed_files_do_no_harm(tmp_path: Path, sound: bytes, how: str) -> None:
    try_harm(tmp_path, sound, how, 3, claim_clean=False)


@pytest.mark.slow
@pytest.mark.parametrize("claim_clean", [False, True], ids=["found", "claimed-clean"])
@pytest.mark.parametrize("how", HARMS)
def test_many_harmed_files_do_no_harm(tmp_path: Path, sound: bytes, how: str, claim_clean: bool) -> None:
    try_harm(tmp_path, sound, how, 60, claim_clean=claim_clean)


@pytest.mark.parametrize("claim_clean", [False, True], ids=["found", "claimed-clean"])
@pytest.mark.parametrize("sixteenth", [0, 1, 3, 7, 11, 15])
def test_a_truncated_file_does_no_harm(
    tmp_path: Path, sound: bytes, sixteenth: int, claim_clean: bool
) -> None:
    outcome(tmp_path, sound[: len(sound) * sixteenth // 16], claim_clean=claim_clean)


@pytest.mark.slow
def test_a_file_truncated_at_any_page_does_no_harm(tmp_path: Path, sound: bytes) -> None:
    for length in range(0, len(sound), PAGE):
        outcome(tmp_path, sound[:length], claim_clean=True)


@pytest.mark.parametrize("data", [b"not a store " * 1000, bytes(20 * PAGE)], ids=["text", "zeros"])
def test_a_file_that_is_no_store_is_set_aside(tmp_path: Path, data: bytes) -> None:
    assert outcome(tmp_path, data, claim_clean=False) == "0 of 2800, 1 rebuilt"
    assert (tmp_path / "store" / "quarantine" / "data.mdb").read_bytes() == data


def test_a_stale_lock_file_is_no_obstacle(tmp_path: Path, sound: bytes) -> None:
    directory = tmp_path / "store"
    outcome(tmp_path, sound, claim_clean=True)
    (directory / "data.mdb").write_bytes(sound)
    (directory / "lock.mdb").write_bytes(b"\xff" * 8192)
    child = subprocess.run(
        [sys.executable, str(READER), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == "2800 of 2800, 0 rebuilt"


@pytest.mark.parametrize("claim_clean", [False, True], ids=["found", "claimed-clean"])
def test_the_file_of_another_store_is_a_store_without_our_prompts(
    tmp_path: Path, claim_clean: bool, sound: bytes
) -> None:
    with kv.open_store(tmp_path / "other") as store:
        root = store.register(Fingerprint((*kv.FINGERPRINT.fields, ("salt", b"other"))))
        for seed in range(4):
            kv.write(store, root, kv.tokens((1, 300), (seed, 400)), scale=8, points=(200, 600))
    other = (tmp_path / "other" / "store" / "data.mdb").read_bytes()
    assert outcome(tmp_path, sound, claim_clean=True) == "2800 of 2800, 0 rebuilt"
    assert outcome(tmp_path, other, claim_clean=claim_clean) == "0 of 2800, 0 rebuilt"


def test_parts_of_equal_length_that_changed_places_are_not_taken_for_each_other(
    store: Store, root: bytes
) -> None:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt, scale=8, points=(200, 600))
    assert kv.restore(store, root, prompt, 8) == 700 and kv.resume(store, root, prompt, 8) == 600

    def swap(update: Update) -> int:
        dat = store.environment.dat
        places: dict[int, list[bytes]] = {}
        for key, value in update.txn.cursor(db=dat):
            places.setdefault(len(value), []).append(bytes(key))
        for keys in places.values():
            values = [bytes(update.txn.get(key, b"", db=dat)) for key in keys]
            for key, value in zip(keys, [*values[1:], values[0]], strict=True):
                update.txn.put(key, value, db=dat)
        return max(map(len, places.values()))

    assert store.writer.order(swap, 20) > 1
    assert kv.restore(store, root, prompt, 8) == 0, "the first block's parts are others'"
    assert kv.resume(store, root, prompt, 8) == 0
    assert store.statistics().quarantined > 0


def test_the_newest_meta_page_is_found(sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes(sound)
    meta = read_meta(path)
    assert meta is not None and meta.page_bytes == PAGE
    assert meta.needed_bytes <= len(sound)
    path.write_bytes(sound[:100])
    assert read_meta(path) is None
