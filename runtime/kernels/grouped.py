"""Block-diagonal matrix products: each group of columns of the input has a matrix of its own.

``out[:, g] = x[:, g] . W[g]`` for per-head projections and for outputs projected in groups. Groups may lie
apart in input and output, so that their results can be parts of wider heads. Every group is a product of its
own, over panels of 16 rows like all others.
"""

import numba as nb

from runtime.kernels.matmul import multiply_alone
from runtime.kernels.quantise import quantise
from runtime.kernels.simd import LANES, VB, ld_i64, load_f32, st_i64, store
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Op, arg, variable
from runtime.team import grab

(
    G_OP,  # address of the matmul op
    G_WEIGHTS,
    G_GROUPS,
    G_GROUP_BYTES,  # from one group's weights to the next
    G_PANELS,  # of a group
    G_PANEL_BYTES,  # from the first row of a panel to that of the next
    G_X,  # activation tiles
    G_X_BYTES,  # of a group's tiles
    G_K,
    G_OUT,
    G_LDO,
    G_OUT_BYTES,  # from one group's results to the next
    G_ROWS,  # job variable of the row count
    G_EXTRA,  # the four parameters that `matmul_unpacked` takes more
) = range(14)
G_WORDS = G_EXTRA + 4

_ITEMS_PER_THREAD = 8


@Op
def quant_groups(a, job, ith, nth, ctl):
    """(x, ldx, groups, bytes from group to group, n, dst, bytes of a group's tiles, activation kind, rows)"""
    x, ldx, groups, x_bytes, n = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    dst, dst_bytes, kind, rows = arg(a, 5), arg(a, 6), arg(a, 7), variable(job, arg(a, 8))
    while True:
        item = grab(ctl, nth, 1)
        if item >= (rows + 3) // 4 * groups:
            break
        g, j = item % groups, item // groups * 4
        quantise(x + g * x_bytes, ldx, j, min(rows, j + 4), rows, n, dst + g * dst_bytes, kind)


@Op
def matmul_groups(args, job, ith, nth, ctl):
    """(descriptor): an item is a range of panels of one group, multiplied as if in a team of one"""
    a = arg(args, 0)
    groups, n_panels, rows = arg(a, G_GROUPS), arg(a, G_PANELS), variable(job, arg(a, G_ROWS))
    at = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    chunk = groups * n_panels // (_ITEMS_PER_THREAD * nth) // 4 * 4
    chunk = max(nb.int64(4), min(chunk, n_panels))
    parts = (n_panels + chunk - 1) // chunk
    while True:
        item = grab(ctl, nth, 1)
        if item >= groups * parts:
            break
        g, p0 = item // parts, item % parts * chunk
        for i in range(4):
            st_i64(at + 64 + 8 * i, arg(a, G_EXTRA + i))
        st_i64(at + 80, arg(a, G_EXTRA + 2) - p0 * LANES)
        w = arg(a, G_WEIGHTS) + g * arg(a, G_GROUP_BYTES) + p0 * arg(a, G_PANEL_BYTES)
        out = arg(a, G_OUT) + g * arg(a, G_OUT_BYTES) + p0 * VB
        x, n = arg(a, G_X) + g * arg(a, G_X_BYTES), min(n_panels, p0 + chunk) - p0
        multiply_alone(arg(a, G_OP), at, w, n, x, arg(a, G_K), out, arg(a, G_LDO), 0, rows)


@Op
def copy_groups(a, job, ith, nth, ctl):
    """(x, ldx, groups, bytes from group to group, n, out, ldo, bytes from group to group there, rows)"""
    x, ldx, groups, x_bytes, n = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4)
    out, ldo, out_bytes, rows = arg(a, 5), arg(a, 6), arg(a, 7), variable(job, arg(a, 8))
    while True:
        j = grab(ctl, nth, 4)
        if j >= rows:
            break
        for r in range(j, min(rows, j + 4)):
            for g in range(groups):
                src, dst = x + r * ldx + g * x_bytes, out + r * ldo + g * out_bytes
                for i in range(0, 4 * n, VB):
                    store(dst + i, load_f32(src + i))
