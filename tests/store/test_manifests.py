"""Named saves: durable once acknowledged, whole when restored, precise when they cannot be."""

from pathlib import Path

import lmdb
import numpy as np
import pytest

from store import (
    Fingerprint,
    FingerprintMismatch,
    InvalidName,
    NameTaken,
    Store,
    UnknownName,
    WriteRefused,
)
from tests.store import kv


@pytest.fixture
def prompt(store: Store, root: bytes) -> kv.Tokens:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt, why="save")
    return prompt


def test_a_save_comes_back_after_a_restart_with_its_tokens(tmp_path: Path) -> None:
    prompt = kv.tokens((1, 700))
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        kv.write(store, root, prompt)
        saved = store.save_manifest("mine", root, prompt, note="hello", model="tiny")
    with kv.open_store(tmp_path) as store:
        found = store.manifest("mine", kv.FINGERPRINT)
        assert found.info == saved
        assert (saved.name, saved.n_tokens, saved.note, saved.model) == ("mine", 700, "hello", "tiny")
        assert np.array_equal(found.tokens, prompt) and found.tokens.dtype == np.int32
        assert found.n_restorable == 700
        assert kv.restore(store, store.register(kv.FINGERPRINT), found.tokens) == 700


def test_a_save_shorter_than_what_is_stored_has_its_own_length(
    store: Store, root: bytes, prompt: kv.Tokens
) -> None:
    for length in (1, 256, 300):
        store.save_manifest("short", root, prompt[:length])
        assert np.array_equal(store.manifest("short").tokens, prompt[:length])


def test_saves_share_blocks_and_say_so(store: Store, root: bytes, prompt: kv.Tokens) -> None:
    first = store.save_manifest("a", root, prompt)
    assert first.bytes_shared == 0
    second = store.save_manifest("b", root, prompt)
    assert second.bytes_shared == second.n_bytes == first.n_bytes
    assert store.statistics().pinned_bytes == first.n_bytes


def test_saving_under_a_known_name_replaces_it(store: Store, root: bytes, prompt: kv.Tokens) -> None:
    store.save_manifest("a", root, prompt)
    store.save_manifest("a", root, prompt[:300])
    (info,) = store.list_manifests()
    assert info.n_tokens == 300
    assert not kv.problems(store)


def test_a_save_of_what_is_not_stored_is_refused(store: Store, root: bytes, prompt: kv.Tokens) -> None:
    store.save_manifest("a", root, prompt)
    with pytest.raises(WriteRefused, match="only 700 of 701 tokens are stored"):
        store.save_manifest("a", root, kv.tokens((1, 701)))
    assert store.manifest("a").info.n_tokens == 700


def test_a_save_is_answered_when_it_is_on_the_disk_and_not_before(
    store: Store, root: bytes, prompt: kv.Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`metasync` is off, so after its commit a save could still be lost with the power."""
    environment, done = store.environment, []
    write, sync = environment.write, environment.sync
    monkeypatch.setattr(environment, "write", lambda call: (write(call), done.append("commit"))[0])
    monkeypatch.setattr(environment, "sync", lambda: (sync(), done.append("sync"))[0])
    for order in (
        lambda: store.save_manifest("one", root, prompt),
        lambda: store.rename_manifest("one", "two"),
        lambda: store.delete_manifest("two"),
    ):
        done.clear()
        order()
        assert done[-2:] == ["commit", "sync"]

    def fail() -> None:
        raise lmdb.DiskError("no disk")

    monkeypatch.setattr(environment, "sync", fail)
    with pytest.raises(WriteRefused, match="no disk"):
        store.save_manifest("three", root, prompt)


def test_an_empty_save_is_possible(store: Store, root: bytes) -> None:
    store.save_manifest("empty", root, kv.tokens((1, 0)))
    assert store.manifest("empty").tokens.size == 0


def test_an_unknown_name_is_told_apart(store: Store) -> None:
    for call in (
        lambda: store.manifest("nope"),
        lambda: store.delete_manifest("nope"),
        lambda: store.rename_manifest("nope", "other"),
        lambda: store.administration.forget_manifest("nope"),
    ):
        with pytest.raises(UnknownName, match="'nope'"):
            call()


def test_a_bad_name_is_refused_everywhere(store: Store, root: bytes, prompt: kv.Tokens) -> None:
    for call in (
        lambda: store.save_manifest("a/b", root, prompt),
        lambda: store.manifest(".."),
        lambda: store.delete_manifest(""),
        lambda: store.rename_manifest("a", "b\n"),
    ):
        with pytest.raises(InvalidName):
            call()


def test_a_save_of_another_model_names_the_difference(store: Store, root: bytes, prompt: kv.Tokens) -> None:
    store.save_manifest("mine", root, prompt)
    other = Fingerprint((("schema", 1), ("weights", b"x" * 32), ("numerics", "dense/2")))
    with pytest.raises(FingerprintMismatch, match="different weights, numerics") as caught:
        store.manifest("mine", other)
    assert caught.value.fields == ("weights", "numerics")


def test_renaming_keeps_everything_but_the_name(store: Store, root: bytes, prompt: kv.Tokens) -> None:
    saved = store.save_manifest("old", root, prompt)
    store.save_manifest("taken", root, prompt)
    with pytest.raises(NameTaken):
        store.rename_manifest("old", "taken")
    store.rename_manifest("old", "new")
    assert [info.name for info in store.list_manifests()] == ["new", "taken"]
    assert store.manifest("new").info.created_ms == saved.created_ms
    assert not kv.problems(store)


def test_a_leaf_that_a_save_holds_stays_when_the_conversation_goes_on(
    store: Store, root: bytes, prompt: kv.Tokens
) -> None:
    store.save_manifest("then", root, prompt)
    kv.write(store, root, kv.tokens((1, 700), (2, 300)))
    assert store.manifest("then").n_restorable == 700
    assert not kv.problems(store)
