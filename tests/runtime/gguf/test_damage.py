"""A file that is wrong is refused with one line that says what is wrong."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import GGMLType, open_model
from tests.runtime.gguf.writer import ARRAY, BOOL, STRING, U32, File, Tensor, string, tiny_model


def refusal(path: Path, **options: bool) -> str:
    with pytest.raises(ModelError) as caught:
        open_model(path, **options)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message.removeprefix(f"{path}: ")


def raw(key: str, kind: int, value: bytes) -> Callable[[File], object]:
    return lambda f: f.metadata.append((key, kind, value))


CASES: list[tuple[str, Callable[[File], object], str]] = [
    ("magic", lambda f: setattr(f, "magic", b"Once"), "not a GGUF file: it begins with b'Once"),
    ("old format", lambda f: setattr(f, "magic", b"ggjt"), "a GGML file older than GGUF"),
    ("version 1", lambda f: setattr(f, "version", struct.pack("<I", 1)), "GGUF version 1"),
    ("version 9", lambda f: setattr(f, "version", struct.pack("<I", 9)), "GGUF version 9 is not supported"),
    ("big endian", lambda f: setattr(f, "version", struct.pack(">I", 3)), "a big-endian GGUF file"),
    ("many keys", lambda f: setattr(f, "n_keys", 1 << 60), f"claims {1 << 60} metadata keys"),
    ("many tensors", lambda f: setattr(f, "n_tensors", 1 << 40), f"claims {1 << 40} tensors"),
    ("duplicate key", lambda f: f.put("general.name", U32, 1), "metadata key general.name occurs twice"),
    ("key not UTF-8", lambda f: f.put(b"\xff\xfe", U32, 1), "a metadata key is not UTF-8"),
    ("key of two lines", lambda f: f.put("a\nb", U32, 1), "a metadata key is not a name"),
    ("value type", raw("k", 13, b""), "k has the unknown value type 13"),
    (
        "element type",
        raw("k", ARRAY, struct.pack("<IQ", 99, 0)),
        "elements of k has the unknown value type 99",
    ),
    ("nested array", raw("k", ARRAY, struct.pack("<IQ", ARRAY, 1)), "an array of arrays"),
    ("huge array", raw("k", ARRAY, struct.pack("<IQ", U32, 1 << 62)), f"k claims {1 << 62} elements"),
    ("many strings", raw("k", ARRAY, struct.pack("<IQ", STRING, 1 << 60)), f"k claims {1 << 60} elements"),
    ("long string", raw("k", STRING, struct.pack("<Q", 1 << 63)), f"k claims {1 << 63} bytes"),
    (
        "string in array",
        raw("k", ARRAY, struct.pack("<IQ", STRING, 2) + string("a") + struct.pack("<Q", 1 << 50)),
        "string 1 of k ends beyond the file",
    ),
    ("bool", raw("k", BOOL, b"\x02"), "k is a bool of value 2"),
    ("bools", raw("k", ARRAY, struct.pack("<IQ", BOOL, 1) + b"\x07"), "k holds a bool that is neither"),
    ("alignment", lambda f: f.put("general.alignment", U32, 48), "general.alignment must be a power of two"),
    (
        "no alignment",
        lambda f: f.put("general.alignment", U32, 0),
        "general.alignment must be a power of two",
    ),
    ("alignment text", lambda f: f.put("general.alignment", STRING, "x"), "general.alignment must be"),
    ("duplicate tensor", lambda f: f.tensors.append(f.tensors[0]), "tensor token_embd.weight occurs twice"),
    ("tensor name", lambda f: f.tensors.append(Tensor(b"\xff", (1,))), "a tensor name is not UTF-8"),
    (
        "long tensor name",
        lambda f: f.tensors.append(Tensor("n" * 300, (1,))),
        "a tensor name claims 300 bytes",
    ),
    ("no dimension", lambda f: f.tensors.append(Tensor("t", (), data=b"")), "tensor t has 0 dimensions"),
    ("5 dimensions", lambda f: f.tensors.append(Tensor("t", (1,) * 5)), "tensor t has 5 dimensions"),
    (
        "zero",
        lambda f: f.tensors.append(Tensor("t", (4, 0), data=b"")),
        "tensor t has the impossible shape [4, 0]",
    ),
    (
        "overflow",
        lambda f: f.tensors.append(Tensor("t", (1 << 33, 1 << 33), data=b"")),
        f"tensor t has the impossible shape [{1 << 33}, {1 << 33}]",
    ),
    (
        "partial block",
        lambda f: f.tensors.append(Tensor("t", (33,), GGMLType.Q8_0, data=b"")),
        "tensor t has rows of 33, not a multiple of Q8_0's 32",
    ),
    (
        "partial interleave",
        lambda f: f.tensors.append(Tensor("t", (256, 3), GGMLType.Q4_K_R4, data=b"")),
        "Q4_K_R4 interleaves 4 rows, tensor t is [256, 3]",
    ),
    (
        "offset",
        lambda f: f.tensors.append(Tensor("t", (1,), offset=4)),
        "offset 4 of tensor t is not a multiple of 32",
    ),
    (
        "far offset",
        lambda f: f.tensors.append(Tensor("t", (1,), offset=1 << 62)),
        f"truncated: expected at least {(1 << 62) + 4 + 992} bytes",
    ),
]


@pytest.mark.parametrize(("damage", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_damaged_field_is_named(tmp_path: Path, damage: Callable[[File], object], expected: str) -> None:
    file = tiny_model()
    damage(file)
    message = refusal(file.write(tmp_path / "m.gguf"))
    if "expected at least" not in expected:
        assert expected in message
    else:
        assert message.startswith("truncated: expected at least 4611686018427")


def test_a_truncated_file_states_expected_and_found_size(tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "m.gguf")
    size = path.stat().st_size
    os.truncate(path, size - 1)
    sizes = f"truncated: expected at least {size} bytes, found {size - 1}"
    assert refusal(path) == f"{sizes} (tensor blk.0.ffn.weight ends at {size})"


def test_every_possible_truncation_is_refused(tmp_path: Path) -> None:
    data = tiny_model().bytes()
    path = tmp_path / "m.gguf"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert refusal(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("Once upon a time there was a text.")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert refusal(tmp_path / "empty.gguf") == "not a GGUF file: it is empty"
    assert refusal(tmp_path / "text.gguf") == "not a GGUF file: it begins with b'Once upon a time'"
    assert refusal(tmp_path) == "a directory"
    assert refusal(tmp_path / "missing.gguf") == "No such file or directory"
    assert refusal(tmp_path / "pipe.gguf") == "not a regular file"


def test_an_unknown_tensor_type_is_unsupported_and_named(tmp_path: Path) -> None:
    file = tiny_model()
    file.tensors.append(Tensor("t", (32,), type_id=77))
    path = file.write(tmp_path / "m.gguf")
    with pytest.raises(UnsupportedModel, match="tensor t has type 77: unknown here"):
        open_model(path)
    file.tensors[-1].type_id = 31
    with pytest.raises(UnsupportedModel, match="type 31: Q4_0_4_4 was removed from the format"):
        open_model(file.write(path))


def test_a_lenient_reader_keeps_what_is_sound(tmp_path: Path) -> None:
    file = tiny_model()
    file.tensors.append(Tensor("t", (32,), type_id=77, data=b""))
    path = file.write(tmp_path / "m.gguf")
    os.truncate(path, path.stat().st_size - 40)
    model = open_model(path, lenient=True)
    assert list(model.tensors) == ["token_embd.weight", "output_norm.weight"]
    assert ["type 77" in str(p) or "truncated" in str(p) for p in model.problems] == [True, True]
