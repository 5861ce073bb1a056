"""Routing against numpy, expert products against the plain matmul row by row, with `==`."""

from dataclasses import dataclass

import numpy as np
import pytest

from runtime.kernels import experts as ops
from runtime.kernels import job
from runtime.kernels import routing as r
from runtime.kernels.dequant import dequantise_rows
from runtime.kernels.formats import FORMATS
from runtime.kernels.job import f32_bits
from runtime.kernels.matmul import MATMUL
from runtime.kernels.pack import pack
from runtime.kernels.quantise import act_bytes
from runtime.kernels.rows import quant
from tests.runtime.ops.harness import Bench, bench

MAX_ROWS = 64


class Router:
    """Tables of a routing for at most 64 rows, and the ops that fill them."""

    def __init__(self, b: Bench, n: int, k: int) -> None:
        self.b, self.n, self.k = b, n, k
        pairs = MAX_ROWS * k
        self.tables = {
            t: b.array(np.full(pairs, -1), np.int32) for t in (r.T_IDS, r.T_PLACE, r.T_PAIR, r.T_EXPERT)
        }
        self.tables |= {t: b.array(np.full(n + 1, -1), np.int32) for t in (r.T_START, r.T_ACTIVE)}
        self.tables[r.T_WEIGHTS] = b.array(np.zeros(pairs))
        self.words = b.array(np.zeros(r.T_WORDS), np.int64)
        self.words[[r.T_K, r.T_EXPERTS]] = k, n
        for table, array in self.tables.items():
            self.words[table] = array.ctypes.data
        self.address = self.words.ctypes.data

    def route(self, logits: np.ndarray, gating: int = r.SOFTMAX, bias: np.ndarray | None = None,
              normalise: bool = False, scale: float = 1.0, groups: int = 1, used: int = 1):  # fmt: skip
        """(ids, weights) of each row, after dispatch."""
        rows, b, width = len(logits), self.b, -(-self.n // 16) * 16
        padded = b.array(np.full((rows, width), 9.0))
        padded[:, : self.n] = logits
        biases = b.array(np.zeros(width))
        if bias is not None:
            biases[: self.n] = bias
        b.rows(rows)
        where = 0 if bias is None else biases.ctypes.data
        b.run(r.route, padded.ctypes.data, 4 * width, self.address, gating, where, int(normalise),
              f32_bits(scale), groups, used)  # fmt: skip
        b.run(r.dispatch, self.address)
        shape = rows, self.k
        ids, weights = (self.tables[t][: rows * self.k].reshape(shape).copy() for t in (r.T_IDS, r.T_WEIGHTS))
        return ids, weights


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


SCORES = {
    r.SOFTMAX: softmax,
    r.SIGMOID: lambda v: 1 / (1 + np.exp(-v)),
    r.SOFTMAX_OF_SELECTED: lambda v: v,
    r.SQRT_SOFTPLUS: lambda v: np.sqrt(np.logaddexp(0, v)),
}


def reference(logits, k, gating, bias, normalise, scale, groups, used):
    """Ids ascending and weights, in float64."""
    x = logits.astype(np.float64)
    p = SCORES[gating](x)
    scores = p + (0 if bias is None else bias)
    if groups > used:
        parts = scores.reshape(len(x), groups, -1)
        best = np.sort(parts, -1)[..., -2:].sum(-1)
        order = np.argsort(-best, axis=-1, kind="stable")[:, used:]
        np.put_along_axis(parts, order[..., None], -np.inf, axis=1)
    ids = np.sort(np.argsort(-scores, axis=-1, kind="stable")[:, :k], -1)
    w = np.take_along_axis(p, ids, -1)
    if gating == r.SOFTMAX_OF_SELECTED:
        w = softmax(w)
    if normalise:
        w /= w.sum(-1, keepdims=True)
    return ids, w * scale


@pytest.mark.parametrize("gating", SCORES)
@pytest.mark.parametrize(("n", "k"), [(4, 1), (6, 2), (40, 8), (130, 6)])
def test_experts_and_weights_equal_the_reference(gating: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    logits, bias = rng.standard_normal((50, n)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    with bench() as b:
        router = Router(b, n, k)
        for biased, normalise in ((None, True), (bias, False), (bias, True)):
            ids, weights = router.route(logits, gating, biased, normalise, 1.5)
            expected_ids, expected = reference(logits, k, gating, biased, normalise, 1.5, 1, 1)
            assert np.array_equal(ids, expected_ids)
            assert np.abs(weights - expected).max() < 1e-5


@pytest.mark.parametrize(("groups", "used"), [(4, 2), (8, 1), (2, 2)])
def test_only_experts_of_the_best_groups_are_selected(groups: int, used: int) -> None:
    rng = np.random.default_rng(groups)
    logits, bias = (
        rng.standard_normal((50, 32)).astype(np.float32),
        rng.standard_normal(32).astype(np.float32),
    )
    with bench() as b:
        ids, weights = Router(b, 32, 4).route(logits, r.SIGMOID, bias, True, 2.5, groups, used)
    expected_ids, expected = reference(logits, 4, r.SIGMOID, bias, True, 2.5, groups, used)
    assert np.array_equal(ids, expected_ids)
    assert np.abs(weights - expected).max() < 1e-5


@pytest.mark.parametrize("normalise", [False, True])
def test_a_table_of_tokens_says_which_experts_and_logits_what_they_count(normalise: bool) -> None:
    rng = np.random.default_rng(5)
    n, k, rows = 20, 3, 40
    table = np.stack([rng.permutation(n)[:k] for _ in range(64)]).astype(np.int32)
    tokens = rng.integers(0, 64, rows).astype(np.int32)
    logits = (rng.standard_normal((rows, n)) * 8).astype(np.float32)
    with bench() as b:
        router = Router(b, n, k)
        padded, ids, wanted = (
            b.array(np.zeros((rows, 32))),
            b.array(tokens, np.int32),
            b.array(table, np.int32),
        )
        padded[:, :n] = logits
        b.rows(rows)
        b.vars[job.TOKENS] = ids.ctypes.data
        b.run(r.route_by_token, padded.ctypes.data, 128, router.address, r.SQRT_SOFTPLUS, wanted.ctypes.data,
              int(normalise), f32_bits(1.5))  # fmt: skip
        got = router.tables[r.T_IDS][: rows * k].reshape(rows, k)
        weights = router.tables[r.T_WEIGHTS][: rows * k].reshape(rows, k)
        expected = np.sort(table[tokens], axis=1)
        assert np.array_equal(got, expected)
        scores = np.take_along_axis(SCORES[r.SQRT_SOFTPLUS](logits.astype(np.float64)), expected, 1)
        scores = scores / scores.sum(1, keepdims=True) if normalise else scores
        assert np.abs(weights - 1.5 * scores).max() < 1e-5


def test_ties_go_to_the_lowest_experts_and_nans_to_valid_ones() -> None:
    logits = np.array([[1, 3, 3, 3, 0, 3], [0] * 6, [np.nan] * 6], np.float32)
    with bench() as b:
        ids, _ = Router(b, 6, 2).route(logits)
    assert ids[:2].tolist() == [[1, 2], [0, 1]]
    assert len(set(ids[2])) == 2 and set(ids[2]) <= set(range(6))


def test_weights_are_multiplied_by_the_scales_of_their_experts() -> None:
    rng = np.random.default_rng(0)
    logits, scales = rng.standard_normal((50, 6)), rng.standard_normal(6).astype(np.float32)
    with bench() as b:
        router = Router(b, 6, 2)
        ids, weights = router.route(logits)
        b.run(r.scale_weights, b.array(scales).ctypes.data, router.address)
        scaled = router.tables[r.T_WEIGHTS][:100].reshape(50, 2).copy()
    assert np.array_equal(scaled, weights * scales[ids])


def test_places_are_ordered_by_expert_and_then_by_row() -> None:
    logits = np.random.default_rng(0).standard_normal((MAX_ROWS, 20)).astype(np.float32)
    logits[:, 7] = -50.0
    with bench() as b:
        router = Router(b, 20, 3)
        ids, _ = router.route(logits)
        t = {name: router.tables[name].copy() for name in router.tables}
    places = sorted(
        (int(e), row, row * 3 + slot) for row, line in enumerate(ids) for slot, e in enumerate(line)
    )
    assert t[r.T_EXPERT].tolist() == [e for e, _, _ in places]
    assert t[r.T_PAIR].tolist() == [pair for _, _, pair in places]
    assert t[r.T_PLACE][t[r.T_PAIR]].tolist() == list(range(3 * MAX_ROWS))
    counts = np.bincount(ids.reshape(-1), minlength=20)
    assert t[r.T_START].tolist() == [0, *np.cumsum(counts)]
    active = np.flatnonzero(counts)
    assert t[r.T_ACTIVE][: 1 + len(active)].tolist() == [len(active), *active]


@dataclass
class Weights:
    """n experts' matrices [rows, k] of one type, packed, and as float32."""

    panels: int
    bytes_per_expert: int
    values: np.ndarray


def weights(b: Bench, type_name: str, n: int, rows: int, k: int) -> Weights:
    """Random bytes, with scales of about 1 where the type has some at a block's start."""
    fmt, rng = FORMATS[type_name], np.random.default_rng(5)
    raw = rng.integers(0, 256, (n, rows, k // fmt.block, fmt.block_bytes)).astype(np.uint8)
    if type_name == "F32":
        raw = rng.standard_normal((n, rows, k)).astype(np.float32).view(np.uint8)
    elif type_name == "MXFP4":
        raw[..., 0] = rng.integers(120, 126, raw.shape[:-1])
    else:
        raw[..., :2] = rng.uniform(0.01, 0.1, raw.shape[:-1]).astype(np.float16)[..., None].view(np.uint8)
    raw = np.ascontiguousarray(raw.reshape(n, rows, -1))
    size = fmt.packed_bytes(rows, k)
    at = b.arena.take(n * size)
    for e in range(n):
        pack(type_name, raw[e].ctypes.data, rows, k, at + e * size)
    return Weights(at, size, dequantise_rows(type_name, raw, k))


def products(
    b: Bench, router: Router, type_name: str, w: Weights, x: np.ndarray, weighed: bool
) -> np.ndarray:
    """x[row] . expert for each pair, in the order of rows: float32 [rows, k, matrix rows]."""
    rows, k = x.shape
    n_rows = w.values.shape[1]
    fmt, ld = FORMATS[type_name], 4 * -(-n_rows // 16) * 16
    column = act_bytes(fmt.act_kind, k)
    act, out = b.arena.take(rows * router.k * column), b.array(np.zeros((rows * router.k, ld // 4)))
    rows_in = b.array(x)
    b.run(ops.gather_quant, rows_in.ctypes.data, 4 * k, k, act, fmt.act_kind, router.address, int(weighed))
    b.run(ops.matmul_experts, MATMUL[type_name].address, w.panels, w.bytes_per_expert, ld // 64,
          fmt.panel_bytes(k), act, column, k, out.ctypes.data, ld, router.address)  # fmt: skip
    places = router.tables[r.T_PLACE][: rows * router.k].reshape(rows, router.k)
    return out[places][..., :n_rows].copy()


@pytest.mark.parametrize("type_name", ["F32", "Q8_0", "MXFP4"])
@pytest.mark.parametrize("rows", [1, 2, 41])
def test_each_pair_has_the_bits_of_a_plain_matmul_of_its_row(type_name: str, rows: int) -> None:
    n, k, width, n_rows = 6, 2, 64, 200
    rng = np.random.default_rng(rows)
    x, logits = rng.standard_normal((rows, width)).astype(np.float32), rng.standard_normal((rows, n))
    fmt, ld = FORMATS[type_name], 4 * 208
    for n_threads in (1, 3):
        with bench(n_threads) as b:
            router, w = Router(b, n, k), weights(b, type_name, n, n_rows, width)
            ids, _ = router.route(logits)
            got = products(b, router, type_name, w, x, weighed=False)
            act, out = b.arena.take(act_bytes(fmt.act_kind, width)), b.array(np.zeros(208))
            source = b.array(np.zeros(width))
            b.rows(1)
            for row in range(rows):
                source[:] = x[row]
                b.run(quant, source.ctypes.data, 4 * width, width, act, fmt.act_kind, job.ROWS)
                for slot, expert in enumerate(ids[row]):
                    b.run(MATMUL[type_name], w.panels + int(expert) * w.bytes_per_expert, 13, act, width,
                          out.ctypes.data, ld, 0, job.ROWS)  # fmt: skip
                    assert np.array_equal(got[row, slot], out[:n_rows]), (n_threads, row, slot)
                    exact = w.values[expert].astype(np.float64) @ x[row]
                    assert np.abs(got[row, slot] - exact).max() < 0.03 * np.abs(exact).max()


def test_results_are_weighed_and_summed_by_ascending_experts() -> None:
    rows, n, k, width = 9, 6, 3, 32
    rng = np.random.default_rng(1)
    x, before = rng.standard_normal((rows, width)).astype(np.float32), rng.standard_normal((rows, width))
    with bench() as b:
        router, w = Router(b, n, k), weights(b, "F32", n, width, width)
        ids, gates = router.route(rng.standard_normal((rows, n)), normalise=True)
        for weigh_inputs in (False, True):
            y = products(b, router, "F32", w, x, weighed=weigh_inputs)
            by_place = b.array(np.zeros((rows * k, width)))
            by_place[router.tables[r.T_PLACE][: rows * k]] = y.reshape(-1, width)
            out = b.array(before)
            b.run(ops.combine_experts, out.ctypes.data, 4 * width, by_place.ctypes.data, 4 * width, width,
                  f32_bits(0.5), int(not weigh_inputs), router.address)  # fmt: skip
            exact = np.einsum("rk,rkoi,ri->ro", gates.astype(float), w.values[ids].astype(float), x)
            assert np.abs(out - (before + 0.5 * exact)).max() < 1e-4
