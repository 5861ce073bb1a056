"""The op tape: what a plan compiles to, and the interpreter that all threads of a team walk in lockstep.

An op is a native function ``void(args, job, ith, nth, ctl)``:

    args   address of its int64 parameters on the tape
    job    address of the run's words: JOB_TAPE, JOB_NOPS, JOB_SCRATCH, then the plan's variables
    ith    this thread of nth
    ctl    the team's control block

On the tape an op takes W words: its function's address, then up to W - 1 parameters. What changes from
run to run (row counts, positions) lies in the job block, so a tape is built once per model.
"""

from collections.abc import Callable
from typing import Any

import numba as nb
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import I64
from runtime.kernels.simd import I, atomic_load, inline, ld_i64
from runtime.team import CANCEL, barrier

W = 16
JOB_TAPE, JOB_NOPS, JOB_SCRATCH, JOB_VARS = 0, 8, 16, 24
SCRATCH = 1 << 20  # bytes per thread at JOB_SCRATCH


class Native:
    """A function of `n_params` int64 as native code, compiled or taken from the kernel cache when its address
    is first asked for.

    It must live at module level and reach its kernels through module globals: numba never finds a closure
    over other kernels in its cache.
    """

    def __init__(self, fn: Callable[..., None], n_params: int) -> None:
        self.name = f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}"
        self.__doc__ = fn.__doc__
        self._fn = fn
        self._n_params = n_params
        self._compiled: Any = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def compiled(self) -> bool:
        return self._compiled is not None

    @property
    def from_cache(self) -> bool:
        """Whether it was found in the kernel cache, and not compiled by this process."""
        return self._compiled is not None and self._compiled.cache_hits > 0

    @property
    def address(self) -> int:
        if self._compiled is None:
            self._compiled = self._compile(cache=True)
        return int(self._compiled.address)

    def assembly(self) -> str:
        """The machine code as text, compiled afresh: numba keeps none of it in its cache."""
        return str(self._compile(cache=False)._library.get_asm_str())

    def _compile(self, cache: bool) -> Any:
        signature = nb.void(*[I] * self._n_params)
        return nb.cfunc(signature, cache=cache, nogil=True, error_model="numpy")(self._fn)


class Op(Native):
    """An op of the tape."""

    def __init__(self, fn: Callable[..., None]) -> None:
        super().__init__(fn, 5)


@intrinsic
def call_op(typingctx, fn, args, job, ith, nth, ctl):
    def codegen(cx, b, sig, a):
        op = ir.FunctionType(ir.VoidType(), [I64] * 5)
        b.call(b.inttoptr(a[0], op.as_pointer()), a[1:])
        return cx.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen


def _walk(job, ith, nth, ctl):
    """One barrier after each op. Once cancelled, threads go on meeting there but do no work."""
    tape, n_ops = ld_i64(job + JOB_TAPE), ld_i64(job + JOB_NOPS)
    if n_ops == 0:
        barrier(ctl, nth)  # a team's program must end with one
    for i in range(n_ops):
        if atomic_load(ctl + CANCEL) == 0:
            op = tape + 8 * W * i
            call_op(ld_i64(op), op + 8, job, ith, nth, ctl)
        barrier(ctl, nth)


_PROGRAM = Native(_walk, 4)


def program() -> int:
    """Address of the interpreter, ``void(job, ith, nth, ctl)``: what a `Team` runs."""
    return _PROGRAM.address


@nb.njit(**inline)
def arg(args, i):
    """The i-th parameter of an op."""
    return ld_i64(args + 8 * i)


@nb.njit(**inline)
def variable(job, i):
    """The i-th variable of the job block."""
    return ld_i64(job + JOB_VARS + 8 * i)
