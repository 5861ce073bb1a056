"""Compressed rows against the reference's rules, in float64, and the same bits wherever steps cut a block."""

from collections.abc import Sequence

import numpy as np
import pytest

from runtime.kernels import compress as ops
from runtime.kernels import job
from runtime.kernels import latent_rows as lr
from runtime.kernels.job import f32_bits
from runtime.kernels.kvtypes import KV_TYPES
from runtime.memory.layout import BLOCK
from tests.runtime.models.deepseek4_reference import Accumulator, Reference
from tests.runtime.ops.harness import Bench, bench

D, PAIRS, EPS = 48, 8, 1e-6
N = 530  # positions: over two blocks of memory, four of a ratio of 128
STEP = 192


class Compressor:
    """One layer's compressor in f32, beside another one whose rows lie between its own."""

    def __init__(self, b: Bench, ratio: int, n_runs: int = 1) -> None:
        rng = np.random.default_rng(ratio)
        self.b, self.ratio, self.width = b, ratio, 2 * D if ratio == 4 else D
        self.frequencies = b.array(0.7 ** np.arange(PAIRS), np.float64)
        self.ape = b.array(rng.standard_normal((ratio, self.width)))
        self.norm = b.array(rng.standard_normal(D))
        self.x = b.array(np.zeros((STEP * n_runs, 2 * self.width + 16)))
        tile_rows = max(1, 16 // ratio)
        rows = BLOCK // ratio
        blocks = -(-N // BLOCK)
        self.cache = [
            b.array(np.full((blocks, rows // tile_rows, 2, tile_rows, D), 7.0)) for _ in range(n_runs)
        ]
        self.tables = [b.array([block.ctypes.data for block in cache], np.int64) for cache in self.cache]
        capacity = (4 if ratio == 4 else 0) + ratio + STEP
        self.rings = [b.array(np.full((capacity, 16 + 2 * self.width), np.nan)) for _ in range(n_runs)]
        self.source = b.array(np.zeros(lr.R_WORDS), np.int64)
        f32 = KV_TYPES["f32"]
        self.source[[lr.R_D, lr.R_RATIO, lr.R_ROW_BYTES, lr.R_OFFSET, lr.R_TILE_ROWS, lr.R_TILE_BYTES,
                     lr.R_PUT]] = [D, ratio, 4 * D, 4 * D * tile_rows, tile_rows, 8 * D * tile_rows,
                                   f32.put_value.address]  # fmt: skip
        self.words = b.array(np.zeros(ops.C_WORDS), np.int64)
        for word, value in {
            ops.C_X: self.x.ctypes.data, ops.C_LDX: self.x.strides[0], ops.C_GATE: 4 * self.width,
            ops.C_WIDTH: self.width, ops.C_D: D, ops.C_RATIO: ratio, ops.C_APE: self.ape.ctypes.data,
            ops.C_NORM: self.norm.ctypes.data, ops.C_EPS: f32_bits(EPS),
            ops.C_STRIDE: self.rings[0].strides[0], ops.C_CAPACITY: capacity, ops.C_OFFSET: 64,
            ops.C_FREQUENCIES: self.frequencies.ctypes.data, ops.C_PAIRS: PAIRS,
            ops.C_ROWS: self.source.ctypes.data,
        }.items():  # fmt: skip
            self.words[word] = value

    def step(self, *parts: tuple[int, np.ndarray]) -> None:
        """(start, rows of values and scores) of each run, all runs in order."""
        runs, row = [], 0
        for (start, values), table in zip(parts, self.tables, strict=True):
            self.x[row : row + len(values), : 2 * self.width] = values
            runs.append((row, len(values), start, [table]))
            row += len(values)
        self.b.runs(runs)
        self.b.run_words[:, job.RUN_RINGS] = [ring.ctypes.data for ring in self.rings]
        self.b.run(ops.append, self.words.ctypes.data)
        self.b.run(ops.emit, self.words.ctypes.data)

    def rows(self, run: int = 0) -> np.ndarray:
        """f32 [compressed rows, D] of the layer, the second of its group."""
        return self.cache[run][:, :, 1].reshape(-1, D)

    def expected(self, values: np.ndarray) -> np.ndarray:
        r = Reference.__new__(Reference)
        r.eps, r.yarn = EPS, self.frequencies.copy()
        accumulator = Accumulator(8 if self.ratio == 4 else 128, self.width)
        tensors = {"c_norm": self.norm, "c_ape": self.ape}
        # x is the row of values and scores, of which the matrices select halves
        tensors["c_kv"], tensors["c_gate"] = np.split(np.eye(2 * self.width), 2)
        r.w = lambda name: tensors[name].astype(np.float64)
        rows = (
            r.compress(x.astype(np.float64), "c", p, self.ratio, accumulator) for p, x in enumerate(values)
        )
        return np.stack([row for row in rows if row is not None])


def values(ratio: int, seed: int = 1, n: int = N) -> np.ndarray:
    width = 2 * D if ratio == 4 else D
    return np.random.default_rng(seed).standard_normal((n, 2 * width)).astype(np.float32) * 2


def feed(compressor: Compressor, rows: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    at = i = 0
    while at < len(rows):
        n = sizes[i % len(sizes)]
        compressor.step((at, rows[at : at + n]))
        at, i = at + n, i + 1
    return compressor.rows().copy()


@pytest.mark.parametrize("ratio", [4, 128])
def test_rows_equal_the_reference_and_lie_where_their_source_says(ratio: int) -> None:
    """A softmax per channel with ape inside, halves of two blocks, norm, rope at the first position."""
    rows = values(ratio)
    with bench() as b:
        compressor = Compressor(b, ratio)
        got, want = feed(compressor, rows, [STEP]), compressor.expected(rows)
        assert np.abs(got[: len(want)] - want).max() < 1e-4
        assert (got[len(want) :] == 7).all()
        assert (compressor.cache[0][:, :, 0] == 7).all()


@pytest.mark.parametrize("ratio", [4, 128])
def test_where_steps_cut_a_block_leaves_no_trace(ratio: int) -> None:
    rows = values(ratio)
    results = []
    for sizes, n_threads in [([STEP], 2), ([1], 1), ([7], 3), ([64, 1, 3], 2), ([127, 130], 1)]:
        with bench(n_threads) as b:
            results.append(feed(Compressor(b, ratio), rows, sizes))
    assert all(np.array_equal(other, results[0]) for other in results[1:])


@pytest.mark.parametrize("ratio", [4, 128])
def test_sequences_in_one_step_keep_to_their_own_rings_and_blocks(ratio: int) -> None:
    first, second = values(ratio, 1), values(ratio, 2)
    with bench() as b:
        alone = [feed(Compressor(b, ratio), rows, [STEP]) for rows in (first, second)]
        both = Compressor(b, ratio, n_runs=2)
        for at in range(0, N, 100):
            both.step((at, first[at : at + 100]), (at, second[at : at + 100]))
        assert all(np.array_equal(both.rows(i), alone[i]) for i in range(2))


def test_the_first_block_has_none_before_it_whatever_the_ring_holds() -> None:
    """The rings here start as NaN, and those are what a block before the first one would give."""
    with bench() as b:
        compressor = Compressor(b, 4)
        got = feed(compressor, values(4, n=4), [4])
        assert np.isfinite(got[0]).all()


@pytest.mark.parametrize("ratio", [4, 128])
def test_a_row_is_written_by_the_very_position_that_ends_its_block(ratio: int) -> None:
    with bench() as b:
        compressor = Compressor(b, ratio)
        rows = values(ratio, n=ratio)
        compressor.step((0, rows[:-1]))
        assert (compressor.rows()[0] == 7).all()
        compressor.step((ratio - 1, rows[-1:]))
        assert (compressor.rows()[0] != 7).any() and (compressor.rows()[1] == 7).all()
