"""Attention and the key/value store against float64 numpy, over every mask and schedule."""

import gguf
import numpy as np
import pytest

from runtime.kernels import attention as attn
from runtime.kernels import attention_layer as al
from runtime.kernels.job import f32_bits
from runtime.kernels.kvstore import rotate_and_store, rotate_back
from runtime.kernels.kvtypes import KV_TYPES
from runtime.kernels.rope import NEOX, NORM, rope_table
from runtime.memory.layout import BLOCK, TILE
from tests.runtime.evaluation import DATA
from tests.runtime.ops.harness import Bench, bench


def reference(q, k, v, positions, scale, window=0, softcap=0.0):
    """softmax(mask(softcap(scale * q k^T))) v in float64; q [n, H, D], k/v [n_keys, KV, D]."""
    heads, kv_heads = q.shape[1], k.shape[1]
    k, v = np.repeat(k, heads // kv_heads, 1).astype(float), np.repeat(v, heads // kv_heads, 1).astype(float)
    s = np.einsum("nhd,khd->nhk", q.astype(float), k) * scale
    if softcap:
        s = softcap * np.tanh(s / softcap)
    key = np.arange(k.shape[0])[None, None]
    at = np.asarray(positions)[:, None, None]
    hidden = key > at
    if window:
        hidden |= at - key >= window
    s[np.broadcast_to(hidden, s.shape)] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("nhk,khd->nhd", p / p.sum(-1, keepdims=True), v)


class Layer:
    """One attention layer over paged memory filled through the store op."""

    def __init__(self, b: Bench, heads: int, kv_heads: int, dk: int, dv: int, n_ctx: int, keys: str = "f16",
                 values: str = "", window: int = 0, softcap: float = 0.0, mask: int = al.CAUSAL,
                 sinks: np.ndarray | None = None, rotate: int = 0,
                 bias: np.ndarray | None = None) -> None:  # fmt: skip
        self.b, self.heads, self.kv_heads, self.dk, self.dv, self.rotate = b, heads, kv_heads, dk, dv, rotate
        self.width = heads * dk + kv_heads * (dk + dv)
        self.scale = dk**-0.5
        key_type, value_type = KV_TYPES[keys], KV_TYPES[values or keys]
        self.op = attn.attention(key_type.name, value_type.name)
        k_bytes, v_bytes = TILE * key_type.row_bytes(dk), TILE * value_type.row_bytes(dv)
        self.tile_bytes = kv_heads * (k_bytes + v_bytes)
        self.n_blocks = -(-n_ctx // BLOCK)
        self.out = b.array(np.zeros((512, heads * dv)))
        self.x = b.array(np.zeros((512, self.width)))
        self.sinks = None if sinks is None else b.array(sinks)
        self.bias = None if bias is None else b.array(bias)
        self.d = al.descriptor(b.array(np.zeros(al.A_WORDS), np.int64), {
            al.A_X: self.x.ctypes.data, al.A_LDX: 4 * self.width, al.A_OUT: self.out.ctypes.data,
            al.A_LDO: 4 * heads * dv, al.A_TILE: self.tile_bytes, al.A_HEADS: heads, al.A_KV_HEADS: kv_heads,
            al.A_DK: dk, al.A_DV: dv, al.A_MASK: mask, al.A_WINDOW: window, al.A_SCALE: f32_bits(self.scale),
            al.A_SOFTCAP: f32_bits(softcap), al.A_SINKS: 0 if self.sinks is None else self.sinks.ctypes.data,
            al.A_PARTIALS: b.arena.take(
                attn.partial_bytes(8, kv_heads, heads // kv_heads, dv, self.n_blocks)),
            al.A_MAX_PARTS: self.n_blocks, al.A_K_BYTES: k_bytes, al.A_V_BYTES: v_bytes, al.A_ROTATE: rotate,
            al.A_PUT_KEY: key_type.put_key.address, al.A_PUT_VALUE: value_type.put_value.address,
            al.A_BIAS: 0 if self.bias is None else self.bias.ctypes.data,
            al.A_SPAN: 0 if self.bias is None else self.bias.shape[1] // 2,
            al.A_GET_KEYS: key_type.get_keys.address, al.A_GET_VALUES: value_type.get_values.address,
        })  # fmt: skip

    def table(self) -> np.ndarray:
        """Blocks scattered in memory, filled with NaN where nothing was stored."""
        blocks = [self.b.arena.array((16 * self.tile_bytes,), np.uint8) for _ in range(self.n_blocks)]
        for block in blocks:
            block.fill(0xFF)
        return self.b.array([block.ctypes.data for block in blocks[::-1]], np.int64)

    def step(self, parts: list[tuple[np.ndarray, int, np.ndarray]]) -> list[np.ndarray]:
        """(qkv rows, start, table) of each run -> outputs [n, heads, dv] of each run."""
        runs, row = [], 0
        for rows, start, table in parts:
            self.x[row : row + len(rows)] = rows
            runs.append((row, len(rows), start, [table]))
            row += len(rows)
        self.b.runs(runs)
        self.b.run(rotate_and_store, self.d.ctypes.data)
        self.b.run(self.op, self.d.ctypes.data)
        self.b.run(attn.attention_combine, self.d.ctypes.data)
        if self.rotate & al.ROTATE_V:
            self.b.run(rotate_back, self.d.ctypes.data)
        return [self.out[r : r + n].reshape(n, self.heads, self.dv).copy() for r, n, _, _ in runs]

    def split(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n, h, kv = len(rows), self.heads, self.kv_heads
        q, k, v = np.split(rows, [h * self.dk, (h + kv) * self.dk], axis=1)
        return q.reshape(n, h, self.dk), k.reshape(n, kv, self.dk), v.reshape(n, kv, self.dv)


def rows(n: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dk", "dv", "window", "softcap"),
    [(9, 3, 64, 64, 0, 0.0), (4, 1, 256, 256, 0, 0.0), (4, 2, 16, 16, 16, 0.0), (3, 3, 48, 32, 300, 0.0),
     (4, 2, 32, 32, 0, 5.0), (12, 1, 16, 16, 0, 0.0)],
)  # fmt: skip
def test_attention_equals_the_reference(heads, kv_heads, dk, dv, window, softcap) -> None:
    n = 700
    with bench() as b:
        layer = Layer(b, heads, kv_heads, dk, dv, n, "f32", window=window, softcap=softcap)
        x, table = rows(n, layer.width), layer.table()
        got = np.concatenate([layer.step([(x[at : at + 300], at, table)])[0] for at in range(0, n, 300)])
        expected = reference(*layer.split(x), range(n), layer.scale, window, softcap)
    assert np.abs(got - expected).max() < 2e-5


@pytest.mark.parametrize(
    ("caches", "window"),
    [(("f16",), 0), (("f16",), 40), (("f16",), 300), (("q8_0", "q4_0"), 0), (("q5_1", "f16"), 300)],
)
def test_a_row_has_the_same_bits_in_every_schedule(caches: tuple[str, ...], window: int) -> None:
    """Whole, in ragged chunks, one by one (split over partitions), on 1 to 3 threads, beside other runs."""
    n = 600
    results = []
    for n_threads in (1, 2, 3):
        with bench(n_threads) as b:
            layer = Layer(b, 6, 2, 32, 32, n, *caches, window=window)
            x, other = rows(n, layer.width), rows(n, layer.width, seed=1)
            for sizes in ([300], [7, 100, 1], [1]):
                table, neighbour = layer.table(), layer.table()
                at, i, out = 0, 0, []
                while at < n:
                    m = min(sizes[i % len(sizes)], n - at)
                    parts = [(x[at : at + m], at, table)]
                    if n_threads == 3:
                        parts.insert(0, (other[at : at + 2], at, neighbour))
                    out.append(layer.step(parts)[-1])
                    at, i = at + m, i + 1
                results.append(np.concatenate(out))
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_stored_keys_and_values_lie_in_tiles() -> None:
    with bench() as b:
        layer = Layer(b, 2, 1, 16, 16, 40, "f32")
        x, table = rows(40, layer.width), layer.table()
        layer.step([(x, 0, table)])
        _, k, v = layer.split(x)
        import ctypes

        block = np.frombuffer(
            (ctypes.c_float * (3 * layer.tile_bytes // 4)).from_address(int(table[0])), np.float32
        )
        tiles = block.reshape(3, 2, 16, 16)
        assert np.array_equal(tiles[:, 0].transpose(0, 2, 1).reshape(48, 16)[:40], k[:, 0])
        assert np.array_equal(tiles[:, 1].reshape(48, 16)[:40], v[:, 0])


@pytest.mark.parametrize("pairing", [NORM, NEOX])
@pytest.mark.parametrize("n_rot", [12, 32, 64])
def test_rope_equals_the_reference(pairing: int, n_rot: int) -> None:
    positions = [0, 1, 77, 131071]
    freqs = 10000.0 ** (-2.0 * np.arange(n_rot // 2) / n_rot)
    with bench() as b:
        layer = Layer(b, 1, 1, 64, 16, 131072, "f32")
        x = rows(4, layer.width)
        layer.x[:4] = x
        tables = [b.array(np.zeros(layer.n_blocks), np.int64)]
        block = b.arena.take(16 * layer.tile_bytes)
        tables[0][:] = block
        b.runs([(0, 4, 0, tables)])
        b.positions[:] = positions
        f = b.array(freqs, np.float64)
        out = b.array(np.zeros((4, 2 * n_rot)))
        b.run(rope_table, f.ctypes.data, n_rot // 2, pairing, f32_bits(1.0), out.ctypes.data, 8 * n_rot)
        words = {
            al.A_ROPE: out.ctypes.data,
            al.A_LD_ROPE: 8 * n_rot,
            al.A_N_ROT: n_rot,
            al.A_PAIRING: pairing,
        }
        al.descriptor(layer.d, words)
        b.run(rotate_and_store, layer.d.ctypes.data)
        got = layer.x[:4, :64].copy()
    angle = np.array(positions)[:, None] * freqs
    c, s = np.cos(angle), np.sin(angle)
    first = slice(0, n_rot, 2) if pairing == NORM else slice(0, n_rot // 2)
    second = slice(1, n_rot, 2) if pairing == NORM else slice(n_rot // 2, n_rot)
    expected = x[:, :64].astype(float)
    u, v = expected[:, first].copy(), expected[:, second].copy()
    expected[:, first], expected[:, second] = u * c - v * s, u * s + v * c
    assert np.abs(got - expected).max() < 1e-6


def quantised(x: np.ndarray, name: str) -> np.ndarray:
    """x [n, heads, d] through a cache type and back, by the reference library."""
    if name in ("f32", "f16"):
        return x.astype(name.replace("f", "float")).astype(np.float32)
    if name == "bf16":
        name = "BF16"
    kind = gguf.GGMLQuantizationType[name.upper()]
    return gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind)


@pytest.mark.parametrize(
    ("keys", "values"),
    [("bf16", "bf16"), ("q8_0", "q8_0"), ("q4_0", "f16"), ("f16", "q4_0"), ("q4_1", "q5_0"), ("q5_0", "q4_1"),
     ("q5_1", "q5_1")],
)  # fmt: skip
def test_quantised_caches_hold_what_ggml_would_hold(keys: str, values: str) -> None:
    n = 300
    with bench() as b:
        layer = Layer(b, 6, 2, 64, 32, n, keys, values)
        x, table = rows(n, layer.width), layer.table()
        got = layer.step([(x, 0, table)])[0]
        q, k, v = layer.split(x)
        expected = reference(q, quantised(k, keys), quantised(v, values), range(n), layer.scale)
    assert np.abs(got - expected).max() < 1e-4


GGML = dict(np.load(DATA / "quants/cache_attention.npz"))
#: those with a minimum meet queries whose sums ggml rounds to f16
ROUNDED_SUMS = ("q4_1", "q5_1")


@pytest.mark.parametrize("name", [name for name in GGML if name not in ("q", "k", "v")])
def test_attention_over_a_cache_is_ggmls_but_for_queries_that_it_rounds(name: str) -> None:
    """ggml meets quantised keys with queries in Q8_0. With such queries results are alike, to rounding."""
    q, k, v = GGML["q"], GGML["k"], GGML["v"]
    n, seen = len(k), len(q)
    x = np.concatenate([np.zeros((n, *q.shape[1:]), np.float32), k, v], axis=1)
    x[n - seen :, : q.shape[1]] = quantised(q, "q8_0")
    with bench() as b:
        layer = Layer(b, q.shape[1], k.shape[1], 64, 64, n, name)
        got = layer.step([(x.reshape(n, -1), 0, layer.table())])[0][n - seen :]
    error = np.sqrt(np.mean((got - GGML[name]) ** 2) / np.mean(GGML[name] ** 2))
    assert error < (5e-4 if name in ROUNDED_SUMS else 5e-6)


@pytest.mark.parametrize("caches", ["f32", "q4_0"])
def test_hadamard_rotation_leaves_attention_as_it_is(caches: str) -> None:
    """Up to rounding with exact caches; with coarse ones it tames the outlier that would spoil its block."""
    n = 128
    with bench() as b:
        plain = Layer(b, 4, 2, 64, 64, n, "f32")
        bare = Layer(b, 4, 2, 64, 64, n, caches)
        rotated = Layer(b, 4, 2, 64, 64, n, caches, rotate=al.ROTATE_K | al.ROTATE_V)
        x = rows(n, plain.width)
        x[:, 4 * 64 + 5 :: 64] *= 20
        truth, without, with_ = (layer.step([(x, 0, layer.table())])[0] for layer in (plain, bare, rotated))
    if caches == "f32":
        assert np.abs(with_ - truth).max() < 1e-3
    else:
        assert np.abs(with_ - truth).mean() < 0.7 * np.abs(without - truth).mean()


def test_chunked_and_symmetric_masks() -> None:
    n, window = 300, 48
    with bench() as b:
        chunked = Layer(b, 4, 2, 32, 32, n, "f32", mask=al.CHUNKED, window=window)
        both = Layer(b, 4, 2, 32, 32, n, "f32", mask=al.SYMMETRIC)
        near = Layer(b, 4, 2, 32, 32, n, "f32", mask=al.SYMMETRIC, window=window)
        x = rows(n, chunked.width)
        q, k, v = chunked.split(x)
        i, j = np.arange(n)[:, None], np.arange(n)[None]
        for layer, visible in (
            (chunked, (j <= i) & (j >= i // window * window)),
            (both, np.ones((n, n), bool)),
            (near, np.abs(i - j) <= window // 2),
        ):
            got = layer.step([(x, 0, layer.table())])[0]
            assert np.abs(got - masked_reference(q, k, v, visible, layer.scale)).max() < 2e-5


@pytest.mark.parametrize("mask", [al.CAUSAL, al.SYMMETRIC])
def test_a_bias_by_head_and_distance_is_added_to_scores(mask: int) -> None:
    """With several query heads per key head; causally also one by one, which splits over partitions."""
    n, span = 500, 768
    bias = np.random.default_rng(3).standard_normal((4, 2 * span)).astype(np.float32)
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    with bench() as b:
        layer = Layer(b, 4, 2, 32, 32, n, "f32", mask=mask, bias=bias)
        x, table = rows(n, layer.width), layer.table()
        got = layer.step([(x, 0, table)])[0]
        visible = j <= i if mask == al.CAUSAL else np.ones((n, n), bool)
        by_head = bias[:, span + j - i].transpose(1, 0, 2)
        expected = masked_reference(*layer.split(x), visible, layer.scale, by_head)
        assert np.abs(got - expected).max() < 2e-5
        if mask == al.CAUSAL:
            single = [layer.step([(x[at : at + 1], at, table)])[0][0] for at in (0, 255, 256, 499)]
            assert np.array_equal(single, got[[0, 255, 256, 499]])


def masked_reference(q, k, v, visible, scale, bias=0.0):
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], 1).astype(float) for a in (k, v))
    s = np.einsum("nhd,khd->nhk", q.astype(float), k) * scale + bias
    s = np.where(visible[:, None], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("nhk,khd->nhd", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("n", [5, 600])
def test_sinks_take_weight_and_give_no_value(n: int) -> None:
    sinks = np.array([2.0, -1.0, 0.0, 9.0], np.float32)
    with bench() as b:
        layer = Layer(b, 4, 2, 32, 32, n, "f32", sinks=sinks)
        x, table = rows(n, layer.width), layer.table()
        got = [layer.step([(x[at : at + 300], at, table)])[0] for at in range(0, n - 1, 300)]
        at = sum(map(len, got))
        if at > n - 1:
            got[-1] = got[-1][: n - 1 - (at - len(got[-1]))]
        got.append(layer.step([(x[n - 1 :], n - 1, table)])[0])
        q, k, v = layer.split(x)
    k, v = np.repeat(k, 2, 1).astype(float), np.repeat(v, 2, 1).astype(float)
    s = np.einsum("nhd,khd->nhk", q.astype(float), k) * layer.scale
    s[np.broadcast_to(np.arange(n)[None, None] > np.arange(n)[:, None, None], s.shape)] = -np.inf
    top = np.maximum(s.max(-1), sinks)[..., None]
    p = np.exp(s - top)
    expected = np.einsum("nhk,khd->nhd", p / (p.sum(-1, keepdims=True) + np.exp(sinks[:, None] - top)), v)
    assert np.abs(np.concatenate(got) - expected).max() < 2e-5
