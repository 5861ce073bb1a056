"""Products of packed weights: close to float64, and the same bits however the work is cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels.formats import FORMATS
from runtime.kernels.isa import ISA, PREFETCHES
from runtime.kernels.matmul import MATMUL
from runtime.kernels.pack import pack
from runtime.kernels.quantise import act_bytes
from tests.runtime.kernels.harness import EVERYDAY, K, matmul, packed, quantised, rounded_activations, vectors

ALL = [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.slow) for name in FORMATS]


def rows(name: str, n: int, blocks: int, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """n rows of `blocks` blocks, drawn from the type's vectors: GGUF bytes, f32 weights and k."""
    raw, deq = vectors(name)
    fmt = FORMATS[name]
    per_block, block = (fmt.block_bytes, fmt.block) if fmt.block > 1 else (fmt.block_bytes * 16, 16)
    pick = np.random.default_rng(seed).integers(0, raw.size // per_block, (n, blocks))
    k = blocks * block
    return raw.reshape(-1, per_block)[pick].reshape(n, -1), deq.reshape(-1, block)[pick].reshape(n, k), k


def activations(m: int, k: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((m, k)) * 10.0 ** rng.integers(-3, 3, (m, 1))).astype(np.float32)


@pytest.mark.parametrize("name", ALL)
def test_products_are_those_of_the_decoded_weights_and_the_rounded_activations(name: str) -> None:
    raw, weights, k = rows(name, 19, K // max(16, FORMATS[name].block), seed=1)
    x = activations(13, k, seed=2)
    exact = rounded_activations(x, FORMATS[name].act_kind) @ weights.astype(np.float64).T
    size = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(weights.astype(np.float64), axis=1)
    assert np.abs(matmul(name, raw, x) - exact).max(initial=0) <= (3e-6 * size).max()
    assert (np.abs(matmul(name, raw, x) - exact) <= 3e-6 * size).all()


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=8)
@given(data=st.data())
def test_bits_do_not_depend_on_columns_rows_or_threads(name: str, data: st.DataObject) -> None:
    n, m = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 30))
    raw, _, k = rows(name, n, data.draw(st.integers(1, 3)), data.draw(st.integers(0, 99)))
    x = activations(m, k, data.draw(st.integers(0, 99)))
    whole = matmul(name, raw, x)
    assert np.array_equal(whole, matmul(name, raw, x, n_threads=data.draw(st.integers(2, 4))))
    j, r = data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, n - 1))
    assert np.array_equal(whole[j : j + 1], matmul(name, raw, x[j : j + 1]))
    assert np.array_equal(whole[:, r:], matmul(name, raw[r:], x))


@pytest.mark.parametrize("name", ["F32", "F16"])
def test_float_rows_of_any_length_are_multiplied(name: str) -> None:
    dtype = {"F32": np.float32, "F16": np.float16}[name]
    rng = np.random.default_rng(5)
    for k in (1, 15, 17, 50):
        w, x = rng.standard_normal((9, k)).astype(dtype), activations(3, k, 6)
        expected = x.astype(np.float64) @ w.astype(np.float64).T
        assert np.allclose(matmul(name, w.view(np.uint8), x), expected, rtol=1e-5, atol=1e-4)


def test_a_product_is_added_to_the_residual_once() -> None:
    raw, _, k = rows("Q4_1", 40, 2, 3)
    x = activations(9, k, 4)
    residual = np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)
    for n_threads in (1, 3):
        assert np.array_equal(matmul("Q4_1", raw, x, n_threads, residual), residual + matmul("Q4_1", raw, x))


def test_cache_blocks_of_many_columns_give_the_same_bits() -> None:
    raw, _, k = rows("Q8_0", 70, 40, 7)
    columns = 2 * (256 << 10) // act_bytes(FORMATS["Q8_0"].act_kind, k) + 3
    x = activations(columns, k, 8)
    whole = matmul("Q8_0", raw, x, n_threads=2)
    for j in (0, columns // 2, columns - 1):
        assert np.array_equal(whole[j : j + 1], matmul("Q8_0", raw, x[j : j + 1]))


@pytest.mark.parametrize("name", EVERYDAY)
def test_rows_that_fill_up_a_panel_count_as_zero(name: str) -> None:
    raw, _, k = rows(name, 3, 2, 11)
    zero = np.zeros((13, raw.shape[1]), np.uint8)
    x = activations(2, k, 1)
    padded = matmul(name, np.concatenate([raw, zero]), x)
    assert np.array_equal(padded[:, :3], matmul(name, raw, x))
    assert np.isfinite(padded).all()


@pytest.mark.parametrize("name", EVERYDAY)
def test_packing_on_threads_writes_the_same_panels_and_nothing_else(name: str) -> None:
    raw, _, k = rows(name, 37, 3, 2)
    alone = packed(name, raw, k)
    assert np.array_equal(alone, packed(name, raw, k, n_threads=3))
    assert not alone[FORMATS[name].packed_bytes(37, k) :].any()


def test_packing_refuses_rows_that_do_not_fit_the_type() -> None:
    with pytest.raises(ValueError, match="Q4_K rows are multiples of 256, not 128"):
        pack("Q4_K", 0, 16, 128, 0)
    with pytest.raises(KeyError):
        pack("I32", 0, 16, 128, 0)


@pytest.mark.parametrize("name", EVERYDAY)
def test_rows_packed_when_they_are_met_give_the_same_bits(name: str) -> None:
    raw, _, k = rows(name, 131, 3, 2)
    for m in (1, 3, 19):
        x = activations(m, k, m)
        residual = activations(m, 131, 5)
        for n_threads in (1, 3):
            unpacked = matmul(name, raw, x, n_threads, residual, repack=False)
            assert np.array_equal(unpacked, matmul(name, raw, x, n_threads, residual)), (m, n_threads)


@pytest.mark.skipif(ISA.name != "avx512-vnni", reason="this machine has no AVX-512 VNNI")
def test_the_instruction_for_byte_dot_products_is_used() -> None:
    assembly = MATMUL["Q8_0"].assembly()
    # 8 groups of 4 k times tiles of 8 and 4 columns, and times one column of the panels that go side by side
    panels = 4 if PREFETCHES else 1
    assert assembly.count("vpdpbusd") >= 8 * (8 + 4 + panels)
    assert "{1to16}" in assembly


def test_quantised_tiles_do_not_depend_on_how_rows_were_shared_out() -> None:
    x = activations(23, 512, 1)
    for name in ("Q4_1", "Q4_K", "F32"):
        kind = FORMATS[name].act_kind
        assert np.array_equal(quantised(x, kind), quantised(x, kind, pieces=7))
