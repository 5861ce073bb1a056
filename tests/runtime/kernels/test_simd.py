"""Conversions, reductions and masks of the vector language."""

import numba as nb
import numpy as np
import pytest
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels import simd
from runtime.kernels.emit import I16, float_to_half_bits_ir, half_bits_to_float_ir, load_ir, store_ir
from runtime.kernels.simd import I, entry, inline

HALVES = np.arange(65536, dtype=np.uint16)
EDGES = np.array(
    [0, 1e-8, 2.0**-25, 2.0**-24, 6.1e-5, 1, 1.00048828125, 65504, 65519.9, 65520, 1e6, np.inf, np.nan],
    np.float32,
)


def floats() -> np.ndarray:
    """Every exponent with random mantissas, and where halves round, overflow and vanish."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 32_000, dtype=np.uint64).astype(np.uint32)
    near_half = np.arange(0, 0x7C00, 7, dtype=np.uint16).view(np.float16).astype(np.float32)
    out = np.concatenate(
        [bits.view(np.float32), near_half, np.nextafter(near_half, np.float32(9)), EDGES, -EDGES]
    )
    return np.concatenate([out, np.zeros(-len(out) % 16, np.float32)])


def convert(load, store, source: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Whole arrays, 16 elements at a time."""
    a, b, n, step = source.ctypes.data, out.ctypes.data, source.itemsize, out.itemsize

    @nb.njit
    def run(count):
        for i in range(0, count, 16):
            store(b + step * i, load(a + n * i))

    run(len(source))
    return out


@intrinsic
def load_half_by_bits(typingctx, address):
    def codegen(cx, b, sig, args):
        return half_bits_to_float_ir(b, load_ir(b, args[0], ir.VectorType(I16, 16)))

    return simd.f32v(types.int64), codegen


@intrinsic
def store_half_by_bits(typingctx, address, v):
    def codegen(cx, b, sig, args):
        store_ir(b, float_to_half_bits_ir(b, args[1]), args[0])
        return cx.get_dummy_value()

    return types.void(types.int64, v), codegen


def same_or_nan(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("load", [simd.load_f16, load_half_by_bits])
def test_halves_widen_exactly(load) -> None:
    wide = convert(load, simd.store, HALVES, np.zeros(65536, np.float32))
    assert same_or_nan(wide, HALVES.view(np.float16).astype(np.float32))


@pytest.mark.parametrize("store", [simd.store_f16, store_half_by_bits])
def test_floats_round_to_the_nearest_even_half(store) -> None:
    x = floats()
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    narrow = convert(simd.load_f32, store, x, np.zeros(len(x), np.float16))
    assert same_or_nan(narrow, expected)


def test_bfloats_widen_exactly_and_round_to_the_nearest_even() -> None:
    wide = convert(simd.load_bf16, simd.store, HALVES, np.zeros(65536, np.float32))
    assert np.array_equal(wide.view(np.uint32), HALVES.astype(np.uint32) << 16)
    x = floats()
    bits = x.view(np.uint32).astype(np.uint64)
    expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    got = convert(simd.load_f32, simd.store_bf16, x, np.zeros(len(x), np.uint16))
    number = ~np.isnan(x)
    assert np.array_equal(got[number], expected[number])
    assert np.isnan((got[~number].astype(np.uint32) << 16).view(np.float32)).all()


def test_a_sum_over_lanes_is_a_tree_of_halves() -> None:
    total = nb.njit(lambda address: simd.hsum(simd.load_f32(address)))
    rng = np.random.default_rng(1)
    for _ in range(50):
        x = (rng.standard_normal(16) * 10.0 ** rng.integers(-8, 8, 16)).astype(np.float32)
        tree = x
        while len(tree) > 1:
            tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
        assert total(x.ctypes.data) == tree[0]


def test_comparisons_select_lanes_and_are_false_for_what_is_no_number() -> None:
    x = np.array([*range(-8, 7), np.nan], np.float32)
    out = np.zeros(16, np.float32)

    @nb.njit
    def clamp(a, b):
        zero = simd.splat_f32(nb.float32(0.0))
        v = simd.load_f32(a)
        simd.store(b, simd.select(simd.vlt(v, zero), zero, v))
        return simd.vany(simd.vgt(v, simd.splat_f32(nb.float32(6.0))))

    assert not clamp(x.ctypes.data, out.ctypes.data)
    assert same_or_nan(out, np.where(x < 0, 0, x).astype(np.float32))


@nb.njit(**inline)
def _either_byte(s, k):
    if k < 4:
        return nb.int64(simd.ld_u8(s + k))
    return nb.int64(simd.ld_u8(s + k + 4)) | nb.int64(simd.ld_u8(s + k - 4))


@nb.njit(I(I, I), **{**entry, "cache": False})
def _unrolled(src, dst):
    for k in range(8):
        value = _either_byte(src, k)
        for j in range(2):
            code = nb.int64(simd.ld_u8(src + 16 + j)) >> (4 * (k & 1))
            simd.st_f32(dst + 4 * (2 * k + j), nb.float32(value * code))
    return 0


def test_an_inlined_helper_keeps_its_loads_when_its_arguments_become_constants() -> None:
    """LLVM 22 deleted this whole function while addresses were sunk as offsets from null (see `emit`)."""
    src = np.arange(1, 33, dtype=np.uint8) * 5
    out = np.full(16, np.nan, np.float32)
    _unrolled(src.ctypes.data, out.ctypes.data)
    s = src.astype(int)
    first = [s[k] if k < 4 else s[k + 4] | s[k - 4] for k in range(8)]
    assert list(out) == [first[k] * (s[16 + j] >> 4 * (k & 1)) for k in range(8) for j in range(2)]


def test_float_parameters_travel_as_bits() -> None:
    back = nb.njit(lambda bits: simd.f32_from_bits(bits))
    for value in (0.0, -1.5, 3.4e38, 1e-45):
        assert back(int(np.float32(value).view(np.int32))) == np.float32(value)
