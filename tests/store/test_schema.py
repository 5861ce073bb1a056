"""A store of an older emberd goes on under a newer one; `tests/data/store` has one that an older wrote."""

import lzma
from pathlib import Path

import pytest

from store import Store, compact_store
from store.records import unseal
from store.schema import SCHEMA, STEPS
from tests.store import kv

DATA = Path(__file__).parents[1] / "data" / "store"
PROMPT = kv.tokens((1, 300))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with a file of schema 1: 300 tokens and the save "old" of them."""
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store" / "data.mdb").write_bytes(lzma.decompress((DATA / "schema-1.mdb.xz").read_bytes()))
    return tmp_path


def schema(store: Store) -> int:
    environment = store.environment
    value = environment.read(lambda txn: bytes(txn.get(b"schema", b"", db=environment.meta)))
    return int(unseal(b"schema", value)[0])


def check_old(store: Store, root: bytes) -> None:
    manifest = store.manifest("old", kv.FINGERPRINT)
    assert (manifest.n_restorable, manifest.info.note, manifest.info.n_point) == (300, "n", 0)
    assert kv.restore(store, root, PROMPT) == 300
    assert not kv.problems(store)
    assert store.administration.verify(deep=True).problems == ()


def test_every_step_to_the_newest_schema_is_there() -> None:
    assert sorted(STEPS) == list(range(1, SCHEMA))


def test_an_old_store_is_upgraded_and_takes_points(state: Path) -> None:
    with kv.open_store(state) as store:
        root = store.register(kv.FINGERPRINT)
        assert (schema(store), store.statistics().rebuilt) == (SCHEMA, 0)
        check_old(store, root)
        kv.write(store, root, PROMPT, points=(200,))
    with kv.open_store(state) as store:
        root = store.register(kv.FINGERPRINT)
        check_old(store, root)
        assert kv.resume(store, root, PROMPT) == 200


def test_an_old_store_can_be_looked_at_before_it_is_upgraded(state: Path) -> None:
    with kv.open_store(state, read_only=True) as store:
        root = store.register(kv.FINGERPRINT)
        assert schema(store) == 1
        check_old(store, root)
        assert store.lookup(root, PROMPT).points == ()


def test_an_old_store_can_be_compacted(state: Path) -> None:
    compact_store(state)
    with kv.open_store(state) as store:
        assert schema(store) == SCHEMA
        check_old(store, store.register(kv.FINGERPRINT))


def test_a_step_that_fails_leaves_the_old_store(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(environment: object, txn: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setitem(STEPS, SCHEMA - 1, fail)
        with pytest.raises(MemoryError):
            kv.open_store(state)
    with kv.open_store(state) as store:
        check_old(store, store.register(kv.FINGERPRINT))
