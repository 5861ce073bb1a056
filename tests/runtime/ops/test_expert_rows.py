"""What happens to rows by place, between the matmuls of experts: biases and activations."""

import numpy as np

from runtime.kernels import activations as act
from runtime.kernels import experts as ops
from runtime.kernels import routing as r
from runtime.kernels.job import f32_bits
from runtime.kernels.quantise import A_F32
from tests.runtime.ops.harness import bench
from tests.runtime.ops.test_experts import Router
from tests.runtime.ops.test_rows import draw, silu


def test_each_place_gets_the_bias_of_its_expert() -> None:
    n, k, rows, width = 6, 2, 9, 32
    x, biases = draw(rows * k, width), draw(n, width, seed=1)
    with bench() as b:
        router = Router(b, n, k)
        router.route(draw(rows, n, seed=2))
        experts = router.tables[r.T_EXPERT][: rows * k].copy()
        out, lines = b.array(x), b.array(biases)
        b.run(ops.bias_experts, out.ctypes.data, 4 * width, lines.ctypes.data, 4 * width, width,
              router.address)  # fmt: skip
        got = out.copy()
    assert len(set(experts)) > 1
    assert np.array_equal(got, x + biases[experts])


def test_each_place_is_activated_as_a_row_is() -> None:
    n, k, width = 6, 3, 48
    x = 4 * draw(k, 2 * width)
    with bench() as b:
        router = Router(b, n, k)
        router.route(draw(1, n, seed=2))
        source, out = b.array(x), b.array(np.zeros((k, width)))
        b.run(ops.activate_experts, source.ctypes.data, 8 * width, 4 * width, width, act.SILU_GATE,
              f32_bits(0.0), out.ctypes.data, A_F32, router.address)  # fmt: skip
        got = out.copy()
    gate, up = np.split(x.astype(float), 2, axis=1)
    assert np.abs(got - silu(gate) * up).max() < 1e-5
