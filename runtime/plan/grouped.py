"""Products and copies of columns in groups, each group of a row with a matrix of its own."""

import numpy as np

from runtime.kernels import grouped as kernels
from runtime.kernels.formats import FORMATS
from runtime.kernels.quantise import act_bytes
from runtime.kernels.simd import LANES
from runtime.kernels.tape import Native
from runtime.plan.builder import Plan
from runtime.plan.values import Rows
from runtime.plan.weights import Panels


def matmul(p: Plan, x: Rows, k: int, weights: Panels, groups: int, out: Rows) -> None:
    """out[:, g] = x[:, g] . W[g], the first k columns of each of the groups that x is cut into.

    `weights` are those of `Weights.grouped_panels`: a group's results are its first columns in `out`,
    which is cut into as many groups, and which may have room for more in each.
    """
    assert weights.k == k and x.width % groups == 0 and out.width % groups == 0
    x_bytes, out_bytes = 4 * x.width // groups, 4 * out.width // groups
    kind = FORMATS[weights.type_name].act_kind
    tiles = p.n_rows(x.count) * act_bytes(kind, k)
    act = p.area(f"grouped activation {kind}", groups * tiles)
    p.op(kernels.quant_groups, x.address, x.ld, groups, x_bytes, k, act, tiles, kind, x.count)
    words = p.arena.array((kernels.G_WORDS,), np.int64, "grouped product")
    words[: kernels.G_EXTRA] = [
        0, weights.address, groups, weights.expert_bytes, weights.rows // LANES, weights.stride, act,
        tiles, k, out.address, out.ld, out_bytes, x.count,
    ]  # fmt: skip
    p.functions.append((words, kernels.G_OP, weights.op))
    for i, param in enumerate(weights.op_params, kernels.G_EXTRA):
        if isinstance(param, Native):
            p.functions.append((words, i, param))
        else:
            words[i] = param
    p.op(kernels.matmul_groups, words.ctypes.data)


def copy(p: Plan, x: Rows, first: int, n: int, groups: int, out: Rows, at: int) -> None:
    """Columns [first, first + n) of each of the groups of x become those from `at` on of out's."""
    assert n % LANES == 0 and x.width % groups == 0 and out.width % groups == 0
    p.op(kernels.copy_groups, x.address + 4 * first, x.ld, groups, 4 * x.width // groups, n,
            out.address + 4 * at, out.ld, 4 * out.width // groups, x.count)  # fmt: skip
