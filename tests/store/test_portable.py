"""Exported saves: what comes out goes in elsewhere; anything else is refused without harm."""

import os
import struct
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import Damaged, Fingerprint, FingerprintMismatch, InvalidName, Store, UnknownName
from store.names import MAX_BYTES
from store.portable import MAGIC, PortableFile
from tests.store import kv

SCALE = 40


@pytest.fixture
def exported(store: Store, root: bytes, tmp_path: Path) -> Path:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt, scale=SCALE)
    store.save_manifest("mine", root, prompt, note="hello", model="tiny")
    path = tmp_path / "mine.ember"
    assert store.administration.export_save("mine", path) == path.stat().st_size
    return path


def test_a_save_travels_to_another_store(exported: Path, tmp_path: Path) -> None:
    with kv.open_store(tmp_path / "other") as other:
        info = other.administration.import_save(exported, expected=kv.FINGERPRINT)
        assert (info.name, info.n_tokens, info.note, info.model) == ("mine", 700, "hello", "tiny")
        assert kv.restore(other, other.register(kv.FINGERPRINT), kv.tokens((1, 700)), SCALE) == 700
        assert not kv.problems(other)
        renamed = other.administration.import_save(exported, name="copy")
        assert renamed.bytes_shared == renamed.n_bytes


def test_an_import_for_another_model_names_the_difference(exported: Path, tmp_path: Path) -> None:
    expected = Fingerprint((("schema", 1), ("weights", b"x" * 32), ("numerics", "dense/1")))
    with kv.open_store(tmp_path / "other") as other:
        with pytest.raises(FingerprintMismatch) as caught:
            other.administration.import_save(exported, expected=expected)
        assert caught.value.fields == ("weights",)
        assert other.statistics().n_blocks == 0


@pytest.mark.parametrize("at", [0, 5, 9, 20, 200, 5000, -40, -1])
def test_a_changed_byte_is_refused(exported: Path, store: Store, at: int) -> None:
    data = bytearray(exported.read_bytes())
    data[at] ^= 1
    exported.write_bytes(data)
    with pytest.raises(Damaged):
        store.administration.import_save(exported, name="bad")
    assert [info.name for info in store.list_manifests()] == ["mine"]


@pytest.mark.parametrize("keep", [0, 7, 12, 100, 40_000])
def test_a_file_that_ends_early_is_refused(exported: Path, keep: int) -> None:
    exported.write_bytes(exported.read_bytes()[:keep])
    with pytest.raises(Damaged):
        PortableFile(exported)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=8) | st.text(max_size=4),
        st.lists,
        max_leaves=15,
    )
)
def test_any_header_under_a_right_digest_is_refused(
    tmp_path_factory: pytest.TempPathFactory, header: object
) -> None:
    packed = msgpack.packb(header)
    body = MAGIC + struct.pack("<I", len(packed)) + packed
    path = tmp_path_factory.mktemp("headers") / "file"
    path.write_bytes(body + blake2b(body, digest_size=32).digest())
    with pytest.raises(Damaged):
        PortableFile(path)


def rewritten(path: Path, change: Callable[[list[Any]], None]) -> None:
    """Change the header's fields under a digest that is right again."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<I", data, len(MAGIC))
    start = len(MAGIC) + 4
    fields = msgpack.unpackb(data[start : start + length])
    change(fields)
    packed = msgpack.packb(fields)
    body = MAGIC + struct.pack("<I", len(packed)) + packed + data[start + length : -32]
    path.write_bytes(body + blake2b(body, digest_size=32).digest())


def test_a_file_of_before_there_were_points_is_read(exported: Path, tmp_path: Path) -> None:
    rewritten(exported, lambda fields: fields.pop())
    with kv.open_store(tmp_path / "other") as other:
        info = other.administration.import_save(exported)
        assert (info.n_tokens, info.n_point) == (700, 0)


STATE = ["state", "state/1", 5000, 5000]


@pytest.mark.parametrize(
    "point",
    [
        [0, [STATE]],
        [701, [STATE]],
        [-1, [STATE]],
        [2**63, [STATE]],
        ["1", 5],
        [700, [["state", "state/1", -1, 5000]]],
        [700, [["state", "state/1", 5000, 0]]],
        [700, [[b"state", "state/1", 5000, 5000]]],
        [700, [STATE] * 3],
        [700, [STATE, ["ring", "ring/1", 1 << 31, 1 << 20]]],
        7,
    ],
)
def test_a_forged_point_is_refused(exported: Path, tmp_path: Path, point: object) -> None:
    def forge(fields: list[Any]) -> None:
        fields[-1] = point

    rewritten(exported, forge)
    with kv.open_store(tmp_path / "other") as other:
        with pytest.raises(Damaged):
            other.administration.import_save(exported)
        assert other.list_manifests() == ()


def test_links_and_pipes_are_not_read(exported: Path, tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(exported)
    os.mkfifo(pipe)
    with pytest.raises(OSError):
        PortableFile(link)
    with pytest.raises(Damaged):
        PortableFile(pipe)


def test_an_export_replaces_a_link_and_does_not_follow_it(
    exported: Path, store: Store, tmp_path: Path
) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("untouched")
    link.symlink_to(victim)
    store.administration.export_save("mine", link)
    assert victim.read_text() == "untouched" and not link.is_symlink()
    assert link.read_bytes() == exported.read_bytes()


def test_a_name_of_any_allowed_length_is_exported(store: Store, root: bytes, tmp_path: Path) -> None:
    name = "n" * MAX_BYTES
    kv.write(store, root, kv.tokens((1, 300)))
    store.save_manifest(name, root, kv.tokens((1, 300)))
    folder = tmp_path / "exports"
    folder.mkdir()
    assert store.administration.export_save(name, folder / name) == (folder / name).stat().st_size
    with pytest.raises(IsADirectoryError, match="exports"):
        store.administration.export_save(name, folder)
    assert list(folder.iterdir()) == [folder / name]


def test_a_failed_export_leaves_nothing_behind(exported: Path, store: Store, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UnknownName):
        store.administration.export_save("nope", tmp_path / "nope")
    with pytest.raises(OSError):
        store.administration.export_save("mine", tmp_path / "no" / "folder")
    with pytest.raises(InvalidName):
        store.administration.import_save(exported, name="../x")
    assert sorted(tmp_path.iterdir()) == before
