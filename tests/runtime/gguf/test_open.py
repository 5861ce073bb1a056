"""What a sound file says is what the reader gives, however it is stored."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from runtime.errors import ModelError
from runtime.gguf import GGMLType, StringArray, open_model
from tests.runtime.gguf.writer import STRING, U32, File, Tensor, tiny_model
from tests.shared_data import shared


def test_every_kind_of_value_reads_as_written(tmp_path: Path) -> None:
    model = open_model(tiny_model().write(tmp_path / "m.gguf"))
    values = model.metadata
    assert [values[f"test.scalar{i}"] for i in range(6)] == [200, -3, 60_000, -30_000, 7, -7]
    assert (values["test.u64"], values["test.i64"]) == (1 << 40, -(1 << 40))
    assert (values["test.f32"], values["test.f64"], values["test.bool"]) == (0.5, 0.1, True)
    floats, bools = values["test.floats"], values["test.bools"]
    assert isinstance(floats, np.ndarray) and floats.tolist() == [1.0, 2.5]
    assert isinstance(bools, np.ndarray) and bools.tolist() == [True, False]


def test_string_arrays_keep_exact_bytes_and_decode_leniently(tmp_path: Path) -> None:
    names = open_model(tiny_model().write(tmp_path / "m.gguf")).metadata["test.names"]
    assert isinstance(names, StringArray)
    expected = [b"a", b"", "gr\u00fcn".encode(), b"\xff\xfe", b"x" * 300]
    assert names.byte_strings() == expected
    assert [names.bytes_at(i) for i in range(-5, 5)] == expected * 2
    assert list(names) == [*names[:]] == ["a", "", "gr\u00fcn", "\ufffd\ufffd", "x" * 300]
    with pytest.raises(IndexError):
        names.bytes_at(5)


@pytest.mark.parametrize(
    "lengths", [[1], [0] * 40, [255, 256, 3], [7] * 50_000, [9] * 40_000 + [0, 300] * 20_000]
)
def test_string_arrays_of_any_lengths_are_found_by_the_fast_scan_and_the_slow_one(
    tmp_path: Path, lengths: list[int]
) -> None:
    texts = [bytes([97 + i % 26]) * n for i, n in enumerate(lengths)]
    path = File().put_array("t", STRING, texts).put("last", U32, 5).write(tmp_path / "m.gguf")
    model = open_model(path)
    strings = model.metadata["t"]
    assert isinstance(strings, StringArray)
    assert strings.byte_strings() == texts
    assert model.metadata["last"] == 5


def test_strings_with_nul_bytes_do_not_confuse_the_fast_scan(tmp_path: Path) -> None:
    texts = [b"\0" * n + b"x" for n in range(64)] * 20 + [b"\5" + b"\0" * 7 + b"abcde"] * 50
    path = File().put_array("t", STRING, texts).write(tmp_path / "m.gguf")
    strings = open_model(path).metadata["t"]
    assert isinstance(strings, StringArray) and strings.byte_strings() == texts


def test_tensors_have_shape_type_size_and_their_own_bytes(tmp_path: Path) -> None:
    file = tiny_model()
    file.tensors[1].data = np.arange(64, dtype="<f4").tobytes()
    model = open_model(file.write(tmp_path / "m.gguf"))
    assert [(t.name, t.shape, t.type, t.n_bytes) for t in model.tensors.values()] == [
        ("token_embd.weight", (64, 3), GGMLType.Q4_0, 108),
        ("output_norm.weight", (64,), GGMLType.F32, 256),
        ("blk.0.ffn.weight", (32, 2, 2), GGMLType.Q8_0, 136),
    ]
    norm = model.tensor_bytes("output_norm.weight")
    assert norm.view("<f4").tolist() == list(range(64))
    assert not norm.flags.writeable
    assert (model.n_params, model.n_bytes) == (64 * 3 + 64 + 128, 108 + 256 + 136)
    with pytest.raises(ModelError, match=r"tensor output\.weight is missing"):
        model.tensor_bytes("output.weight")


def test_views_outlive_the_model(tmp_path: Path) -> None:
    with open_model(tiny_model().write(tmp_path / "m.gguf")) as model:
        view = model.tensor_bytes("output_norm.weight")
    assert view.sum() == 0 and not model.has("output_norm.weight")


def test_alignment_is_the_files_own(tmp_path: Path) -> None:
    file = File(alignment=256).put("general.alignment", U32, 256)
    file.tensors = [Tensor("a", (3,)), Tensor("b", (2,), data=np.array([1, 2], "<f4").tobytes())]
    model = open_model(file.write(tmp_path / "m.gguf"))
    assert model.tensor_bytes("b").view("<f4").tolist() == [1, 2]


@pytest.mark.parametrize("name", ["llama", "gemma3", "bert", "gpt-oss", "gemma3n"])
def test_the_reference_reader_sees_the_same(name: str) -> None:
    path = shared(f"models/archs/{name}.gguf")
    model, reference = open_model(path, check=True), gguf.GGUFReader(path)
    assert list(model.tensors) == [t.name for t in reference.tensors]
    for tensor in reference.tensors:
        info = model.tensors[tensor.name]
        assert (info.shape, info.type, info.n_bytes) == (
            tuple(tensor.shape.tolist()),
            tensor.tensor_type,
            tensor.n_bytes,
        )
        assert np.array_equal(model.tensor_bytes(tensor.name), tensor.data.reshape(-1).view(np.uint8))
    for key, value in model.metadata.items():
        expected = reference.fields[key].contents()
        found = value.tolist() if isinstance(value, np.ndarray) else value
        assert (list(found) if isinstance(found, StringArray) else found) == expected


def test_sizes_of_all_types_agree_with_the_vectors_of_both_libraries() -> None:
    for row in json.loads(shared("quants/manifest.json").read_text())["types"]:
        kind = GGMLType(row["id"])
        assert kind.rows == row["interleaved_rows"]
        if kind is GGMLType.I2_S:
            assert kind.tensor_bytes((768, 16)) == 768 * 16 // 4 + 32
        else:
            assert (kind.block, kind.block_bytes) == (row["block"], row["block_bytes"])
            assert kind.row_bytes(768) == row["row_bytes_768"], kind.name


def test_file_type_is_named_or_guessed(tmp_path: Path) -> None:
    assert open_model(tiny_model().write(tmp_path / "a.gguf")).file_type == "F32 (guessed)"
    named = tiny_model().put("general.file_type", U32, 15).write(tmp_path / "b.gguf")
    assert open_model(named).file_type == "Q4_K - Medium"


def test_a_change_on_disk_is_noticed(tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "m.gguf")
    model = open_model(path)
    model.verify_unchanged()
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ModelError, match="has changed since it was opened"):
        model.verify_unchanged()
    path.unlink()
    with pytest.raises(ModelError, match="is gone"):
        model.verify_unchanged()


@pytest.mark.parametrize(
    ("kind", "offset", "value"),
    [
        (GGMLType.F32, 8, "<f4"),
        (GGMLType.F16, 8, "<f2"),
        (GGMLType.Q4_0, 0, "<f2"),
        (GGMLType.Q6_K, 208, "<f2"),
    ],
)
def test_check_finds_weights_that_are_not_numbers(
    tmp_path: Path, kind: GGMLType, offset: int, value: str
) -> None:
    data = bytearray(kind.tensor_bytes((256,)))
    data[offset : offset + np.dtype(value).itemsize] = np.array([np.nan], value).tobytes()
    file = File(tensors=[Tensor("good", (256,), kind), Tensor("w", (256,), kind, data=bytes(data))])
    path = file.write(tmp_path / "m.gguf")
    open_model(path)
    with pytest.raises(ModelError, match="tensor w holds values that are not finite"):
        open_model(path, check=True)
