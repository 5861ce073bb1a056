"""Everything that changes stored bytes changes the fingerprint, and the difference has a name."""

from pathlib import Path
from typing import Any

import pytest

from store import Adapter, Damaged, Fingerprint, diff, model_fingerprint, weights_digest

BASE: dict[str, Any] = {
    "weights": b"w" * 32,
    "architecture": "llama",
    "layers": (("full", 30, 3, 64, 64, 0),),
    "kv_layout": (("full", "gqa16/f16/f16"),),
    "positions": (("rope_base", 100_000.0), ("scale", 1.0)),
    "numerics": (("dense", 1),),
    "adapters": (Adapter(b"a" * 32, 0.5),),
    "projector": b"",
    "salt": b"",
}
CHANGED: dict[str, Any] = {
    "weights": b"v" * 32,
    "architecture": "qwen3",
    "layers": (("full", 30, 3, 64, 64, 512),),
    "kv_layout": (("full", "gqa16/q8_0/f16"),),
    "positions": (("rope_base", 10_000.0), ("scale", 1.0)),
    "numerics": (("dense", 2),),
    "adapters": (Adapter(b"a" * 32, 0.25),),
    "projector": b"p" * 32,
    "salt": b"user",
}


@pytest.mark.parametrize("field", CHANGED)
def test_each_field_changes_the_id_and_is_named(field: str) -> None:
    base, changed = model_fingerprint(**BASE), model_fingerprint(**(BASE | {field: CHANGED[field]}))
    assert base.id != changed.id and base.root != changed.root
    assert diff(base, changed) == diff(changed, base) == (field,)


def test_the_id_never_changes_between_releases() -> None:
    assert model_fingerprint(**BASE).id.hex() == (
        "d011a7432517a3d4cc7cd8f0b1523f21d5ece6c207f22579c2e4c932c3cfa873"
    )


def test_order_and_idleness_of_adapters_do_not_matter() -> None:
    a, b, idle = Adapter(b"a" * 32, 1.0), Adapter(b"b" * 32, 2.0), Adapter(b"c" * 32, 0.0)
    one = model_fingerprint(**(BASE | {"adapters": (a, b)}))
    other = model_fingerprint(**(BASE | {"adapters": (b, idle, a)}))
    assert one.id == other.id


def test_a_salt_is_not_kept_readable() -> None:
    assert b"secret key" not in model_fingerprint(**(BASE | {"salt": b"secret key"})).pack()


def test_a_fingerprint_comes_back_from_its_bytes() -> None:
    base = model_fingerprint(**BASE)
    assert Fingerprint.unpack(base.pack()) == base


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x91\x91\xa1a", b"\x91\x92\xa1a\xc0"])
def test_bytes_that_are_no_fingerprint_are_damage(data: bytes) -> None:
    with pytest.raises(Damaged):
        Fingerprint.unpack(data)


def test_kinds_of_values_are_told_apart() -> None:
    values = (1, 1.0, "1", b"1", (1,), True)
    assert len({Fingerprint((("x", value),)).id for value in values}) == len(values)


class Cache(dict[bytes, bytes]):
    def put(self, key: bytes, digest: bytes) -> None:
        self[key] = digest


def test_weights_are_digested_by_content_and_order(tmp_path: Path) -> None:
    one, two, copy = (tmp_path / name for name in ("one", "two", "copy"))
    one.write_bytes(b"1" * 100_000)
    two.write_bytes(b"2" * 100_000)
    copy.write_bytes(b"1" * 100_000)
    assert weights_digest([one], None) == weights_digest([copy], None)
    assert len({weights_digest(paths, None) for paths in ([one], [two], [one, two], [two, one])}) == 4


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"1" * 1000)
    cache = Cache()
    first = weights_digest([file], cache)
    (key,) = cache
    cache[key] = b"remembered"
    assert weights_digest([file], cache) != first
    file.write_bytes(b"2" * 1000)
    assert weights_digest([file], cache) == weights_digest([file], None)
    assert len(cache) == 2


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        weights_digest([tmp_path / "none"], None)
