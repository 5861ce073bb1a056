"""Matrix products of weights that stay in the file: each range of panels is packed when it is met.

The packed panels live in the thread's scratch, which its core's cache holds, and go through the same op as
panels packed at load: the same bits, for the price of packing in every step.
"""

from collections.abc import Mapping

import numba as nb
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import I64
from runtime.kernels.formats import FORMATS, ByType
from runtime.kernels.matmul import ALONE, multiply_alone
from runtime.kernels.simd import VB, ld_i64
from runtime.kernels.tape import JOB_SCRATCH, SCRATCH, Native, Op, arg, variable
from runtime.team import grab

#: how rows of a type become panels, as native ``void(src, n_rows, k, dst, first panel, end)``
PACK: Mapping[str, Native] = ByType(lambda name: Native(FORMATS[name].module.pack.py_func, 6))

_PANELS_AT_ONCE = 4  # as many as one column is multiplied with side by side
ROOM = SCRATCH - 2 * ALONE  # bytes that packed panels may take, also where another op runs this one


@intrinsic
def _call_pack(typingctx, fn, src, n_rows, k, dst, p0, p1):
    def codegen(cx, b, sig, a):
        pack = ir.FunctionType(ir.VoidType(), [I64] * 6)
        b.call(b.inttoptr(a[0], pack.as_pointer()), a[1:])
        return cx.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen


@Op
def matmul_unpacked(a, job, ith, nth, ctl):
    """Parameters 0 to 7 as `matmul.MATMUL` documents, but for 0: rows as in the file; then (matmul op,
    packer, rows of the matrix, bytes per panel). A panel takes at most `ROOM` bytes.
    """
    w, n_panels, x, k, out, ldo = arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), arg(a, 4), arg(a, 5)
    residual, m = arg(a, 6), variable(job, arg(a, 7))
    op, pack, n_rows, panel_bytes = arg(a, 8), arg(a, 9), arg(a, 10), arg(a, 11)
    at = ld_i64(job + JOB_SCRATCH) + ith * SCRATCH
    panels = at + ALONE
    chunk = min(nb.int64(_PANELS_AT_ONCE), ROOM // panel_bytes)
    while True:
        p0 = grab(ctl, nth, chunk)
        if p0 >= n_panels:
            break
        p1 = min(n_panels, p0 + chunk)
        # packers count panels from the matrix's first, in the file and in what they write
        _call_pack(pack, w, n_rows, k, panels - p0 * panel_bytes, p0, p1)
        added = residual + p0 * VB if residual != 0 else residual
        multiply_alone(op, at, panels, p1 - p0, x, k, out + p0 * VB, ldo, added, m)
