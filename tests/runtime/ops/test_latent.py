"""Attention over rows that heads share against float64 numpy, over every source and schedule."""

import ctypes
from dataclasses import dataclass, field

import numpy as np
import pytest

from runtime.kernels import job
from runtime.kernels import latent as la
from runtime.kernels import latent_rows as lr
from runtime.kernels.job import f32_bits
from runtime.kernels.kvtypes import KV_TYPES
from runtime.memory.layout import BLOCK
from tests.runtime.ops.harness import Bench, bench


def reference(q, keys, visible, dv, scale, sinks=None):
    """One softmax per head over all visible keys; q [n, H, D], keys [m, D], visible [n, m] bool."""
    s = np.einsum("nhd,kd->nhk", q.astype(float), keys.astype(float)) * scale
    s = np.where(visible[:, None], s, -np.inf)
    extra = np.full((*s.shape[:2], 1), -np.inf) if sinks is None else np.broadcast_to(
        sinks[None, :, None], (*s.shape[:2], 1))  # fmt: skip
    s = np.concatenate([s, extra], -1)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("nhk,kd->nhd", p[..., :-1], keys[:, :dv].astype(float))


@dataclass
class Source:
    """A source of rows in scattered blocks, or in a ring where it has a capacity."""

    b: Bench
    d: int
    kind: str = "f32"
    ratio: int = 1
    tile_rows: int = 16
    window: int = 0
    capacity: int = 0
    top_k: int = 0
    n_rows: int = 512
    words: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        kv = KV_TYPES[self.kind]
        self.words = self.b.array(np.zeros(lr.R_WORDS), np.int64)
        self.row_bytes = kv.row_bytes(self.d)
        self.tile_bytes = self.tile_rows * (self.row_bytes + 64)  # another layer's rows follow
        self.lists = self.b.array(np.zeros((self.n_rows, max(1, self.top_k))), np.int32)
        for index, value in {
            lr.R_D: self.d, lr.R_RATIO: self.ratio, lr.R_WINDOW: self.window, lr.R_ROW_BYTES: self.row_bytes,
            lr.R_TILE_ROWS: self.tile_rows, lr.R_TILE_BYTES: self.tile_bytes, lr.R_TOP_K: self.top_k,
            lr.R_LISTS: self.lists.ctypes.data, lr.R_CAPACITY: self.capacity,
            lr.R_STRIDE: self.row_bytes + 64, lr.R_PUT: kv.put_value.address, lr.R_GET: kv.get_values.address,
        }.items():  # fmt: skip
            self.words[index] = value

    @property
    def address(self) -> int:
        return self.words.ctypes.data

    def table(self, n_blocks: int) -> np.ndarray:
        """Blocks scattered in memory, NaN where nothing was stored; or, at entry 0, a ring."""
        if self.capacity:
            return self.b.array([self.b.arena.take(self.capacity * (self.row_bytes + 64))], np.int64)
        per_block = BLOCK // self.ratio // self.tile_rows * self.tile_bytes
        blocks = [self.b.arena.array((per_block,), np.uint8) for _ in range(n_blocks)]
        for block in blocks:
            block.fill(0xFF)
        return self.b.array([block.ctypes.data for block in blocks[::-1]], np.int64)

    def put(self, table: np.ndarray, r: int, x: np.ndarray) -> None:
        """Row r = x, as the op that compresses rows does."""
        run = self.b.array(np.zeros(16), np.int64)
        run[6:] = table.ctypes.data
        per_block = BLOCK // self.ratio
        i = r % per_block
        at = int(table[r // per_block]) + i // self.tile_rows * self.tile_bytes
        at += i % self.tile_rows * self.row_bytes
        put = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(KV_TYPES[self.kind].put_value.address)
        x = self.b.array(x)
        put(x.ctypes.data, at, self.d, 0, 0)

    def visible(self, positions: np.ndarray, n_rows: int, lists: np.ndarray | None = None) -> np.ndarray:
        """bool [n, n_rows]; `lists` i32 [n, top_k]."""
        r = np.arange(n_rows)[None]
        p = positions[:, None]
        seen = r < (p + 1) // self.ratio
        if self.window:
            seen &= r > p - self.window
        if self.top_k and lists is not None:
            listed = np.zeros_like(seen)
            np.put_along_axis(listed, lists.astype(np.int64), True, 1)
            seen = np.where((p + 1) // self.ratio > self.top_k, listed, seen)
        return seen


class Layer:
    """One attention layer over one or two sources; the first has a row for each position."""

    def __init__(self, b: Bench, heads: int, d: int, dv: int, sources: list[Source], n_ctx: int,
                 sinks: np.ndarray | None = None) -> None:  # fmt: skip
        self.b, self.heads, self.d, self.dv, self.sources = b, heads, d, dv, sources
        self.scale, self.n_blocks = d**-0.5, -(-n_ctx // BLOCK)
        self.x, self.q = b.array(np.zeros((512, d))), b.array(np.zeros((512, heads * d)))
        self.out = b.array(np.zeros((512, heads * dv)))
        self.sinks = None if sinks is None else b.array(np.pad(sinks, (0, -heads % 16)))
        self.words = b.array(np.zeros(la.L_WORDS), np.int64)
        max_parts = 2 * (self.n_blocks + 1)
        for index, value in {
            la.L_Q: self.q.ctypes.data, la.L_LDQ: 4 * heads * d, la.L_OUT: self.out.ctypes.data,
            la.L_LDO: 4 * heads * dv, la.L_HEADS: heads, la.L_D: d, la.L_DV: dv,
            la.L_SCALE: f32_bits(self.scale),
            la.L_SINKS: 0 if self.sinks is None else self.sinks.ctypes.data,
            la.L_FIRST: sources[0].address, la.L_SECOND: sources[1].address if sources[1:] else 0,
            la.L_RECORDS: b.arena.take(la.records_bytes(8, heads, dv, max_parts)),
            la.L_MAX_PARTS: max_parts, la.L_UNITS: la.units_of_tile(d, dv),
        }.items():  # fmt: skip
            self.words[index] = value
        for g, source in enumerate(sources):
            source.words[lr.R_GROUP] = g

    def tables(self) -> list[np.ndarray]:
        return [source.table(self.n_blocks) for source in self.sources]

    def step(self, parts: list[tuple[np.ndarray, np.ndarray, int, list[np.ndarray]]]) -> list[np.ndarray]:
        """(keys [n, d], queries [n, H, d], start, tables) of each run -> outputs [n, H, dv] of each."""
        runs, row = [], 0
        for keys, queries, start, tables in parts:
            n = len(keys)
            self.x[row : row + n], self.q[row : row + n] = keys, queries.reshape(n, -1)
            runs.append((row, n, start, tables))
            row += n
        self.b.runs(runs)
        if self.sources[0].capacity:
            self.b.run_words[:, job.RUN_RINGS] = [tables[0][0] for *_, tables in runs]
        self.b.run(lr.store_latents, self.sources[0].address, self.x.ctypes.data, 4 * self.d)
        self.b.run(la.latent_attention, self.words.ctypes.data)
        self.b.run(la.latent_combine, self.words.ctypes.data)
        return [self.out[r : r + n].reshape(n, self.heads, self.dv).copy() for r, n, _, _ in runs]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("heads", "d", "dv", "sinks"),
    [(16, 80, 64, False), (4, 48, 32, True), (20, 64, 64, False), (40, 576, 512, True),
     (128, 576, 512, False), (9, 32, 16, True)],
)  # fmt: skip
def test_dense_attention_equals_the_reference(heads, d, dv, sinks) -> None:
    n = 330
    logits = normal(heads, seed=3) + 2 if sinks else None
    with bench() as b:
        layer = Layer(b, heads, d, dv, [Source(b, d)], n, logits)
        keys, queries, tables = normal(n, d), normal(n, heads, d, seed=1), layer.tables()
        got = [
            layer.step([(keys[i : i + 110], queries[i : i + 110], i, tables)])[0] for i in range(0, n, 110)
        ]
        seen = layer.sources[0].visible(np.arange(n), n)
        expected = reference(queries, keys, seen, dv, layer.scale, logits)
    assert np.abs(np.concatenate(got) - expected).max() < 2e-5


def make_windowed(b: Bench, heads: int, n: int, kind: str = "f32") -> tuple[Layer, list[np.ndarray]]:
    """A ring of the last 40 positions and compressed rows of every 4, of which queries have lists of 50."""
    ring, rows = Source(b, 64, "f32", window=40, capacity=40 + 300), Source(b, 64, kind, 4, 8, top_k=50)
    layer = Layer(b, heads, 64, 64, [ring, rows], n, normal(heads, seed=5))
    tables = layer.tables()
    for r, row in enumerate(normal(n // 4, 64, seed=6)):
        rows.put(tables[1], r, row)
    return layer, tables


def lists_for(positions: np.ndarray, top_k: int) -> np.ndarray:
    """For each query some ascending choice of its rows that depends on its position only."""
    return np.array([
        np.sort(np.random.default_rng(p).permutation(max(top_k, (p + 1) // 4))[:top_k]) for p in positions
    ])  # fmt: skip


@pytest.mark.parametrize("heads", [4, 64])
def test_a_window_and_selected_compressed_rows_share_one_softmax(heads) -> None:
    n, step = 420, 140
    with bench() as b:
        layer, tables = make_windowed(b, heads, n)
        keys, queries, lists = normal(n, 64), normal(n, heads, 64, seed=1), lists_for(np.arange(n), 50)
        got = []
        for i in range(0, n, step):
            layer.sources[1].lists[:step] = lists[i : i + step]
            got.append(layer.step([(keys[i : i + step], queries[i : i + step], i, tables)])[0])
        compressed = normal(n // 4, 64, seed=6)
        ring, rows = layer.sources
        seen = np.concatenate(
            [ring.visible(np.arange(n), n), rows.visible(np.arange(n), n // 4, lists)], 1)  # fmt: skip
        expected = reference(
            queries, np.concatenate([keys, compressed]), seen, 64, layer.scale, normal(heads, seed=5)
        )
    assert np.abs(np.concatenate(got) - expected).max() < 2e-5


@pytest.mark.parametrize(("heads", "kind"), [(4, "f16"), (40, "q8_0")])
def test_a_row_has_the_same_bits_in_every_schedule(heads: int, kind: str) -> None:
    """Whole, in ragged chunks, one by one (split over partitions), on 1 to 3 threads, beside other runs."""
    n, results = 560, []
    for n_threads in (1, 2, 3):
        with bench(n_threads) as b:
            layer = Layer(b, heads, 64, 32, [Source(b, 64, kind)], n)
            keys, queries = normal(n, 64), normal(n, heads, 64, seed=1)
            for sizes in ([300], [7, 100, 1], [1]) if n_threads < 3 else ([90],):
                tables, neighbour = layer.tables(), layer.tables()
                at, i, out = 0, 0, []
                while at < n:
                    m = min(sizes[i % len(sizes)], n - at)
                    parts = [(keys[at : at + m], queries[at : at + m], at, tables)]
                    if n_threads == 3:
                        parts.insert(0, (keys[at : at + 2] + 1, queries[at : at + 2], at, neighbour))
                    out.append(layer.step(parts)[-1])
                    at, i = at + m, i + 1
                results.append(np.concatenate(out))
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_a_query_of_two_sources_has_the_same_bits_in_every_schedule() -> None:
    n, results = 420, []
    for n_threads, sizes in ((1, [140]), (2, [1]), (2, [33, 1, 300])):
        with bench(n_threads) as b:
            layer, tables = make_windowed(b, 20, n, "q8_0")
            keys, queries, lists = normal(n, 64), normal(n, 20, 64, seed=1), lists_for(np.arange(n), 50)
            at, i, out = 0, 0, []
            while at < n:
                m = min(sizes[i % len(sizes)], n - at)
                layer.sources[1].lists[:m] = lists[at : at + m]
                out.append(layer.step([(keys[at : at + m], queries[at : at + m], at, tables)])[0])
                at, i = at + m, i + 1
            results.append(np.concatenate(out))
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_a_list_of_the_first_rows_gives_the_bits_of_seeing_no_others() -> None:
    n, top_k, results = 300, 280, []
    keys, queries = normal(n, 64), normal(1, 20, 64, seed=1)
    with bench() as b:
        for position, listed in ((top_k - 1, 0), (n - 1, top_k)):
            source = Source(b, 64, top_k=listed)
            layer = Layer(b, 20, 64, 64, [source], n)
            tables = layer.tables()
            layer.step([(keys, np.repeat(queries, n, 0), 0, tables)])
            source.lists[0, :listed] = np.arange(listed)
            results += layer.step([(keys[position : position + 1], queries, position, tables)])
    assert np.array_equal(*results)


@pytest.mark.parametrize("kind", list(KV_TYPES))
def test_rows_of_every_cache_type_are_what_they_decode_to(kind: str) -> None:
    n, d = 40, 64
    with bench(1) as b:
        layer = Layer(b, 4, d, d, [Source(b, d, kind)], n)
        keys, tables = normal(n, d), layer.tables()
        got = layer.step([(keys, normal(n, 4, d, seed=1), 0, tables)])[0]
        decoded = b.array(np.zeros((n, d)))
        source = layer.sources[0]
        get = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(KV_TYPES[kind].get_values.address)
        for tile in range(0, n, 16):
            rows = b.array(np.zeros((16, d)))
            get(int(tables[0][0]) + tile // 16 * source.tile_bytes, rows.ctypes.data, d, 0, 0)
            decoded[tile : tile + 16] = rows[: n - tile]
        seen = source.visible(np.arange(n), n)
        expected = reference(normal(n, 4, d, seed=1), decoded, seen, d, layer.scale)
    error = {"f32": 0, "f16": 2e-3, "bf16": 2e-2, "q8_0": 2e-2}.get(kind, 0.6)
    assert np.abs(decoded - keys).max() <= error
    assert np.abs(got - expected).max() < 2e-5


def test_cleared_rows_are_those_of_zeros_and_no_others() -> None:
    """Of rows that stand for 4 positions, those stay that the positions before decided."""
    with bench(1) as b:
        source = Source(b, 64, "q8_0", ratio=4, tile_rows=8)
        table, zeros = source.table(1), b.array(np.zeros(64))
        clear = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(lr.clear_latents.address)
        clear(source.address, int(table[0]), 10, 256, zeros.ctypes.data)
        n_bytes = 8 * source.tile_bytes
        block = np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(int(table[0]))).reshape(8, -1)
        rows = block[:, : 8 * source.row_bytes].reshape(64, -1)
    assert (rows[:2] == 0xFF).all()
    assert not rows[2:].any()
    assert (block[:, 8 * source.row_bytes :] == 0xFF).all()
