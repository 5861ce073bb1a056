"""The lightning indexer against float64 numpy: scores, exact selections, every schedule."""

import numpy as np
import pytest

from runtime.kernels import indexer as ix
from tests.runtime.ops.harness import Bench, bench
from tests.runtime.ops.test_latent import Source, normal


class Index:
    """Index keys of one layer, filled in advance, and the op that selects among them."""

    def __init__(self, b: Bench, heads: int, keys: np.ndarray, ratio: int, top_k: int) -> None:
        d = keys.shape[1]
        self.b, self.heads, self.d, self.top_k = b, heads, d, top_k
        self.source = Source(b, d, ratio=ratio, tile_rows=16 if ratio == 1 else 8)
        self.target = Source(b, d, ratio=ratio, top_k=top_k)
        n_blocks = -(-len(keys) * ratio // 256)
        self.table = self.source.table(n_blocks)
        for r, key in enumerate(keys):
            self.source.put(self.table, r, key)
        self.q, self.w = b.array(np.zeros((512, heads * d))), b.array(np.zeros((512, -(-heads // 16) * 16)))
        self.words = b.array(np.zeros(ix.I_WORDS), np.int64)
        ld = 4 * 512 * n_blocks
        self.words[:] = [
            self.q.ctypes.data, self.q.strides[0], self.w.ctypes.data, self.w.strides[0], heads, d,
            self.source.address, self.target.address, b.arena.take(4 * ld), ld,
        ]  # fmt: skip

    def select(self, parts: list[tuple[np.ndarray, np.ndarray, int]]) -> list[np.ndarray]:
        """(queries [n, heads, d], weights [n, heads], start) of each run -> lists [n, top_k] of each."""
        runs, row = [], 0
        self.target.lists[:] = -1
        for q, w, start in parts:
            self.q[row : row + len(q)] = q.reshape(len(q), -1)
            self.w[row : row + len(q), : self.heads] = w
            runs.append((row, len(q), start, [self.table]))
            row += len(q)
        self.b.runs(runs)
        self.b.run(ix.index_scores, self.words.ctypes.data)
        self.b.run(ix.index_select, self.words.ctypes.data)
        return [self.target.lists[r : r + n].copy() for r, n, *_ in runs]


def scores(q, w, keys):
    """[n, rows]"""
    return np.einsum("nh,nhr->nr", w, np.maximum(0, np.einsum("nhd,rd->nhr", q.astype(float), keys)))


@pytest.mark.parametrize(("heads", "d", "ratio", "top_k"), [(8, 64, 1, 50), (64, 128, 4, 40), (20, 32, 4, 1)])
def test_the_best_rows_are_selected_in_ascending_order(heads, d, ratio, top_k) -> None:
    n = 600
    keys, q, w = normal(n // ratio, d), normal(n, heads, d, seed=1), normal(n, heads, seed=2)
    with bench() as b:
        index = Index(b, heads, keys, ratio, top_k)
        got = np.concatenate([
            index.select([(q[i : i + 200], w[i : i + 200], i)])[0] for i in range(0, n, 200)
        ])  # fmt: skip
    expected = scores(q, w, keys)
    for p in range(n):
        seen = (p + 1) // ratio
        if seen <= top_k:
            assert (got[p] == -1).all()
            continue
        assert (np.diff(got[p]) > 0).all() and got[p][-1] < seen
        others = np.delete(expected[p, :seen], got[p])
        assert expected[p, got[p]].min() >= others.max() - 1e-3 * np.abs(expected[p]).max()


def test_equal_scores_go_to_the_lowest_rows() -> None:
    """All heads' products are negative, so every score is zero."""
    with bench() as b:
        index = Index(b, 4, np.ones((300, 16), np.float32), 1, 20)
        (got,) = index.select([(-np.ones((2, 4, 16), np.float32), np.ones((2, 4)), 298)])
    assert np.array_equal(got, [range(20), range(20)])


def test_scores_that_are_no_numbers_still_give_rows_that_exist() -> None:
    with bench() as b:
        index = Index(b, 4, np.full((300, 16), np.nan, np.float32), 1, 20)
        (many,) = index.select([(normal(2, 4, 16), np.ones((2, 4)), 297)])
        (one,) = index.select([(normal(1, 4, 16), np.ones((1, 4)), 299)])
    assert all(np.array_equal(row, range(20)) for row in (*many, *one))


def test_a_selection_is_the_same_in_every_schedule() -> None:
    """Whole, in ragged chunks, one by one (scores shared by threads), beside another run."""
    n, results = 400, []
    keys, q, w = normal(n, 32), normal(n, 20, 32, seed=1), normal(n, 20, seed=2)
    for n_threads, sizes in ((1, [400]), (2, [1]), (2, [7, 100, 1]), (3, [120])):
        with bench(n_threads) as b:
            index = Index(b, 20, keys, 1, 33)
            at, i, out = 0, 0, []
            while at < n:
                m = min(sizes[i % len(sizes)], n - at)
                parts = [(q[at : at + m], w[at : at + m], at)]
                if n_threads == 3:
                    parts.insert(0, (q[:1], w[:1], 350))
                out.append(index.select(parts)[-1])
                at, i = at + m, i + 1
            results.append(np.concatenate(out))
    assert all(np.array_equal(results[0], r) for r in results[1:])
