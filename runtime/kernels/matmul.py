"""Matrix products of packed weights and quantised activations, one op per weight type."""

from collections.abc import Mapping

import numba as nb

from runtime.kernels.formats import FORMATS, ByType
from runtime.kernels.simd import inline, st_i64
from runtime.kernels.tape import JOB_SCRATCH, JOB_VARS, Op, W, call_op
from runtime.team import CANCEL, NEXT, WORKERS

#: op by GGML type name; parameters on the tape:
#:   0  panels, 16 rows each (`pack.pack`)
#:   1  number of panels
#:   2  activation tiles of the type's `act_kind` (`quantise.quantise`)
#:   3  k
#:   4  out: f32 at ``out + j * ldo + 4 * row``, 16 times the panels in each of m columns
#:   5  ldo, bytes
#:   6  0, or rows laid out as `out` that the product is added to; `out` is scratch then
#:   7  job variable that holds m
#: Panels are multiplied in any order by any thread: no bit of the result depends on it, nor on m.
MATMUL: Mapping[str, Op] = ByType(lambda name: FORMATS[name].module.matmul)

_JOB, _CTL = 8 * W, 16 * W
ALONE = _CTL + WORKERS  # bytes that `multiply_alone` takes of a thread's scratch


@nb.njit(**inline)
def multiply_alone(op, at, w, n_panels, x, k, out, ldo, residual, m):
    """Run a matmul op as if in a team of one; its parameters, its job and its team's words lie at `at`.

    Parameters from the 8th on are the caller's to write; the op's own scratch comes after `ALONE` bytes.
    """
    st_i64(at, w)
    st_i64(at + 8, n_panels)
    st_i64(at + 16, x)
    st_i64(at + 24, k)
    st_i64(at + 32, out)
    st_i64(at + 40, ldo)
    st_i64(at + 48, residual)
    st_i64(at + 56, nb.int64(0))  # m is the job's first variable
    st_i64(at + _JOB + JOB_VARS, m)
    st_i64(at + _JOB + JOB_SCRATCH, at + ALONE)
    st_i64(at + _CTL + NEXT, nb.int64(0))
    st_i64(at + _CTL + CANCEL, nb.int64(0))
    call_op(op, at, at + _JOB, nb.int64(0), nb.int64(1), at + _CTL)
