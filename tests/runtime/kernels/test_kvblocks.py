"""Rows of keys and values in quantised caches against ggml's own bytes (tests/data/quants/README.md)."""

from ctypes import CFUNCTYPE, c_int64

import gguf
import numpy as np
import pytest

from runtime.kernels.kvtypes import KV_TYPES
from runtime.kernels.tape import Native
from runtime.memory.layout import TILE
from tests.runtime.evaluation import DATA

ROWS = dict(np.load(DATA / "quants/cache_rows.npz"))
QUANTISED = [name for name in ROWS if name != "x"]
CALL = CFUNCTYPE(None, *[c_int64] * 5)


def call(function: Native, *args: np.ndarray | int) -> None:
    words = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in args]
    CALL(function.address)(*words, *[0] * (5 - len(words)))


@pytest.mark.parametrize("name", QUANTISED)
def test_a_row_of_values_has_the_bytes_that_ggml_would_write(name: str) -> None:
    x, expected, kind = ROWS["x"], ROWS[name], KV_TYPES[name]
    got = np.zeros_like(expected)
    for row, at in zip(x, got, strict=True):
        call(kind.put_value, row, at, len(row))
    blocks = (len(x), -1, kind.block_bytes)
    meaningful = (x.reshape(len(x), -1, kind.block) != 0).any(2)  # codes of a scale of 0 are not
    assert np.array_equal(got.reshape(blocks)[meaningful], expected.reshape(blocks)[meaningful])
    scales = got.reshape(blocks)[~meaningful][:, :2].copy().view(np.float16)
    assert scales.size > 0 and not scales.any()


@pytest.mark.parametrize("name", QUANTISED)
def test_keys_and_values_are_read_as_ggml_would_read_them(name: str) -> None:
    x, kind = ROWS["x"], KV_TYPES[name]
    d = x.shape[1]
    expected = gguf.quants.dequantize(ROWS[name], gguf.GGMLQuantizationType[name.upper()])
    for first in range(0, len(x), TILE):
        tile = np.zeros(TILE * kind.row_bytes(d), np.uint8)
        keys, values = np.zeros((d, TILE), np.float32), np.zeros((TILE, d), np.float32)
        for lane in range(TILE):
            call(kind.put_key, x[first + lane], tile, lane, d)
        call(kind.get_keys, tile, keys, d)
        call(kind.get_values, ROWS[name][first : first + TILE].copy(), values, d)
        for got in (keys.T, values):
            np.testing.assert_allclose(got, expected[first : first + TILE], rtol=2e-6, atol=1e-9)
