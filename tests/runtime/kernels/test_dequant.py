"""Weights decode to exactly the floats ggml decodes them to."""

import numpy as np
import pytest

from runtime.kernels.dequant import EMBED, dequantise_rows
from runtime.kernels.formats import FORMATS
from tests.runtime.kernels.harness import K, run_op, vectors
from tests.shared_data import shared


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.int32), b.view(np.int32))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_decode_to_the_bits_of_ggml(name: str) -> None:
    raw, expected = vectors(name)
    assert same_bits(dequantise_rows(name, raw, K), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_all_shared_vectors_decode_to_the_bits_of_ggml(name: str) -> None:
    file = name.lower().replace("_k", "_K") if name.endswith("_K") else name.lower()
    with np.load(shared(f"quants/{file}.npz")) as data:
        raw = data["raw"] if "raw" in data else data["raw_imatrix"]
        sets = [(raw, data["deq"])] + ([(data["rnd"], data["rnd_deq"])] if "rnd" in data else [])
    for raw, expected in sets:
        rows = raw.view(np.uint8).reshape(len(expected), -1)
        assert same_bits(dequantise_rows(name, rows, K), expected)


@pytest.mark.parametrize("name", ["Q8_0", "Q6_K", "F16"])
def test_embedding_gathers_rows_by_id_and_scales_them(name: str) -> None:
    raw, expected = vectors(name)
    ids = np.array([3, 0, 3, 1], np.int32)
    scale = np.float32(27.7128)
    out = np.full((5, K + 16), 7, np.float32)
    params = [raw.ctypes.data, raw.strides[0], K, ids.ctypes.data, out.ctypes.data, out.strides[0]]
    run_op(EMBED[name], [*params, int(scale.view(np.int32)), 1], [0, 4], n_threads=2)
    assert same_bits(out[:4, :K].copy(), expected[ids] * scale)
    assert (out[4:] == 7).all() and (out[:, K:] == 7).all()


def test_rows_that_do_not_fit_the_type_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 32, not 40"):
        dequantise_rows("Q8_0", np.zeros((1, 34), np.uint8), 40)
    with pytest.raises(ValueError, match="34 bytes, not uint8 33"):
        dequantise_rows("Q8_0", np.zeros((1, 33), np.uint8), 32)
    with pytest.raises(KeyError):
        dequantise_rows("Q9_9", np.zeros((1, 34), np.uint8), 32)
