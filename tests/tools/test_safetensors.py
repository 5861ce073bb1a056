"""Safetensors files are read exactly, and damaged ones are refused in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.errors import FetchError
from tools.safetensors import read_safetensors


def write(path: Path, header: object, body: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def entry(
    dtype: object = "F32", shape: object = (2,), begin: object = 0, end: object = 8
) -> dict[str, object]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}


def test_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[7]], np.int64)
    header = {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "I64", "shape": [1, 1], "data_offsets": [24, 32]},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    }
    found = read_safetensors(write(tmp_path / "m", header, a.tobytes() + b.tobytes()))
    assert found.keys() == {"a", "b"}
    assert np.array_equal(found["a"], a)
    assert np.array_equal(found["b"], b)


@pytest.mark.parametrize(
    "header",
    [
        b"no JSON",
        b"[" * 100_000,
        [],
        {"x": 1},
        entry("F64"),
        entry(dtype=[]),
        entry(shape=[3]),
        entry(shape=[-1, -2]),
        entry(shape=[True, 2]),
        entry(shape=[2] + [1] * 40),
        entry(shape=[2**40, 2**40]),
        entry(begin=-8, end=0),
        entry(begin=8, end=16),
        entry(begin=8, end=0),
        entry(end="8"),
    ],
)
def test_a_damaged_header_is_refused_in_one_line(tmp_path: Path, header: object) -> None:
    with pytest.raises(FetchError) as error:
        read_safetensors(write(tmp_path / "m", header, bytes(8)))
    assert "\n" not in str(error.value)


@given(data=st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    try:
        read_safetensors(path)
    except FetchError as error:
        assert "\n" not in str(error)
