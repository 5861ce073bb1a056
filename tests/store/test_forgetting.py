"""Forgetting: what only the forgotten text held is gone from the file after compaction, all else remains."""

from pathlib import Path

import numpy as np
import pytest

from store import Store, compact_store
from tests.store import kv

MARK = np.array([0x4B52414D, 0x5345594B, 0x21212121], np.int32)  # bytes "MARKKYES!!!!" in the file
MARK_BYTES = MARK.tobytes()


def marked(seed: int, n_before: int = 600) -> kv.Tokens:
    return np.concatenate([kv.tokens((1, 300), (seed, n_before - 300)), MARK, kv.tokens((9, 400))])


def bytes_in_files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("how", ["manifest", "prefix", "all", "text"])
def test_a_forgotten_text_leaves_the_file_when_it_is_compacted(tmp_path: Path, how: str) -> None:
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        shared = kv.tokens((1, 300), (5, 300))
        secret = marked(5)
        kv.write(store, root, secret)
        store.save_manifest("secret", root, secret)
        neighbour = np.concatenate([kv.tokens((1, 300)), kv.tokens((7, 300))])
        kv.write(store, root, neighbour)
        if how == "manifest":
            store.administration.forget_manifest("secret")
        elif how == "prefix":
            store.administration.forget_prefix(root, secret, saves=True)
        elif how == "text":
            store.administration.forget_text(shared.tobytes(), lambda ids: ids.tobytes())
        else:
            store.administration.forget_all()
        assert not kv.problems(store)
        left = kv.restore(store, root, secret)
        if how != "all":
            assert kv.restore(store, root, neighbour) == len(neighbour)
            assert left == 300
        assert store.list_manifests() == ()
    assert MARK_BYTES in bytes_in_files(tmp_path)
    compact_store(tmp_path)
    assert MARK_BYTES not in bytes_in_files(tmp_path)
    with kv.open_store(tmp_path) as store:
        assert store.statistics().rebuilt == 0
        assert not kv.problems(store)
        assert kv.restore(store, store.register(kv.FINGERPRINT), neighbour) == (0 if how == "all" else 600)


def test_a_save_outlives_the_forgetting_of_its_conversation(store: Store, root: bytes) -> None:
    kv.write(store, root, marked(5))
    store.save_manifest("kept", root, marked(5)[:700])
    gone = store.administration.forget_prefix(root, kv.tokens((1, 300)))
    assert gone.saves == ()
    assert store.manifest("kept").n_restorable == 700
    assert not kv.problems(store)


def test_forgetting_a_prefix_takes_all_that_continues_it(store: Store, root: bytes) -> None:
    for seed in (5, 6):
        kv.write(store, root, marked(seed))
    kv.write(store, root, kv.tokens((1, 290), (8, 300)))
    store.administration.forget_prefix(root, kv.tokens((1, 300)))
    assert kv.restore(store, root, marked(5)) == 290
    assert kv.restore(store, root, kv.tokens((1, 290), (8, 300))) == 590


def test_forgetting_what_is_not_there_changes_nothing(store: Store, root: bytes) -> None:
    kv.write(store, root, marked(5))
    gone = store.administration.forget_prefix(root, kv.tokens((1, 300), (77, 500)))
    assert (gone.n_blocks, gone.n_bytes, gone.saves) == (0, 0, ())
    assert kv.restore(store, root, marked(5)) == len(marked(5))


def test_an_interrupted_compaction_leaves_no_copy_behind(tmp_path: Path) -> None:
    kv.open_store(tmp_path).close()
    left = tmp_path / "store" / "compacting"
    left.mkdir()
    (left / "data.mdb").write_bytes(MARK_BYTES)
    kv.open_store(tmp_path).close()
    assert not left.exists()


def test_compaction_keeps_every_byte_and_returns_space(tmp_path: Path) -> None:
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(6):
            kv.write(store, root, kv.tokens((seed, 700)), scale=40)
        store.save_manifest("kept", root, kv.tokens((3, 700)))
        store.administration.prune(down_to=0)
    aside = tmp_path / "store" / "quarantine" / "data.mdb"
    aside.parent.mkdir()
    aside.write_bytes(b"conversations of a file that could not be read")
    before, after = compact_store(tmp_path)
    assert after < before / 2
    assert not aside.exists(), "it holds text too"
    with kv.open_store(tmp_path) as store:
        assert kv.restore(store, store.register(kv.FINGERPRINT), kv.tokens((3, 700)), 40) == 700
        assert store.administration.verify(deep=True).problems == ()
