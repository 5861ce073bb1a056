"""Hyper-connections against the reference model's rules, in float64, and bit by bit against a row alone."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from runtime.kernels import hyperconnect as ops
from runtime.kernels import job
from runtime.kernels.job import f32_bits
from tests.runtime.models.deepseek4_reference import Reference
from tests.runtime.ops.harness import bench

N, D, EPS = 4, 48, 1e-6


@dataclass
class Case:
    """Rows of the 24 numbers, of streams and of a sub-layer's results; scales and bases."""

    m: np.ndarray
    streams: np.ndarray
    y: np.ndarray
    scale: np.ndarray
    base: np.ndarray

    def row(self, i: int) -> "Case":
        return replace(self, m=self.m[i : i + 1], streams=self.streams[i : i + 1], y=self.y[i : i + 1])


def random_case(rows: int) -> Case:
    rng = np.random.default_rng(rows)
    shapes = (rows, 24), (rows, N, D), (rows, D), 3, 24
    m, *others = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return Case(2 * m, *others)


def expected(case: Case, iterations: int) -> tuple[np.ndarray, ...]:
    """(x, post, C, streams after `leave`) by the reference's rules, which have no model here."""
    r = Reference.__new__(Reference)
    vars(r).update(N=N, D=D, eps_hc=EPS, iterations=iterations)
    r.w = lambda name: (case.scale if name.endswith("scale") else case.base).astype(np.float64)
    outs = []
    for m, streams, y in zip(case.m, case.streams.astype(np.float64), case.y, strict=True):
        r.mix = lambda streams, name, m=m: m.astype(np.float64)
        x, post, c = r.hc_pre(streams, "hc")
        outs.append((x, post, c, r.hc_post(streams, y, post, c)))
    return tuple(map(np.stack, zip(*outs, strict=True)))


def run(case: Case, iterations: int = 20, n_threads: int = 2) -> tuple[np.ndarray, ...]:
    """(x, numbers, streams after `leave`)"""
    rows = len(case.m)
    with bench(n_threads) as b:
        m = b.array(np.pad(case.m, ((0, 0), (0, 8))))
        scales = b.array(np.pad(np.repeat(case.scale, [4, 4, 16]), (0, 8)))
        bases = b.array(np.pad(case.base, (0, 8)))
        streams, y, x = b.array(case.streams), b.array(case.y), b.array(np.zeros((rows, D)))
        b.rows(rows)
        b.run(ops.enter, m.ctypes.data, 128, scales.ctypes.data, bases.ctypes.data, f32_bits(EPS), iterations,
              streams.ctypes.data, 4 * N * D, D, x.ctypes.data, 4 * D)  # fmt: skip
        b.run(ops.leave, m.ctypes.data, 128, streams.ctypes.data, 4 * N * D, D, y.ctypes.data, 4 * D)
        return x.copy(), m[:, :24].copy(), streams.copy()


@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_what_a_sublayer_sees_and_what_streams_become_equal_the_reference(iterations: int) -> None:
    """Softmax over the target, columns first, one more of them than rows; C is applied transposed."""
    case = random_case(50)
    x, numbers, streams = run(case, iterations)
    want_x, post, c, want_streams = expected(case, iterations)
    assert np.abs(x - want_x).max() < 1e-5
    assert np.abs(numbers[:, 4:8] - post).max() < 1e-6
    assert np.abs(numbers[:, 8:].reshape(-1, 4, 4) - c).max() < 2e-6
    assert np.abs(streams - want_streams).max() < 1e-5


def test_twenty_iterations_bring_rows_and_columns_close_to_one() -> None:
    _, numbers, _ = run(random_case(50))
    c = numbers[:, 8:].reshape(-1, 4, 4)
    assert np.abs(c.sum(1) - 1).max() < 1e-5
    assert np.abs(c.sum(2) - 1).max() < 0.02


def test_a_row_has_the_same_bits_in_any_company_and_on_any_number_of_threads() -> None:
    case = random_case(21)
    together = run(case, n_threads=3)
    for i in (0, 7, 20):
        alone = run(case.row(i), n_threads=1)
        assert all(np.array_equal(a[0], b[i]) for a, b in zip(alone, together, strict=True))


def test_gates_that_saturate_stay_numbers() -> None:
    case = random_case(4)
    case.m *= 1e4
    case.m[3] = -1e30
    assert all(np.isfinite(out).all() for out in run(case))


def test_streams_begin_as_copies_and_end_as_one_weighed_sum() -> None:
    rng = np.random.default_rng(3)
    with bench() as b:
        x, streams = b.array(rng.standard_normal((5, D))), b.array(np.zeros((5, N, D)))
        b.rows(5)
        b.run(ops.spread, x.ctypes.data, 4 * D, D, streams.ctypes.data, 4 * N * D)
        assert np.array_equal(streams, np.repeat(x[:, None], N, 1))
        streams[:] = rng.standard_normal((5, N, D))
        before = streams.copy()
        m, scales, bases = (b.array(rng.standard_normal(shape)) for shape in ((5, 16), 16, 16))
        logits = m[:, :N] * scales[:N].astype(np.float64) + bases[:N]
        out = b.array(np.zeros((5, D)))
        b.run(ops.merge, m.ctypes.data, 64, scales.ctypes.data, bases.ctypes.data, f32_bits(EPS),
              streams.ctypes.data, 4 * N * D, D, out.ctypes.data, 4 * D, job.OUT_ROWS)  # fmt: skip
    weights = 1 / (1 + np.exp(-logits)) + EPS
    assert np.abs(out - (weights[:, :, None] * before).sum(1)).max() < 1e-5
