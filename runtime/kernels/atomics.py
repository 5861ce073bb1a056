"""Atomic int64 words, and ways to wait."""

import sys

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from runtime.kernels.emit import I32, I64, call_ir
from runtime.kernels.isa import IS_ARM, IS_X86

HAS_FUTEX = sys.platform == "linux" and (IS_X86 or IS_ARM)
_FUTEX = 98 if IS_ARM else 202
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


@intrinsic
def atomic_add(typingctx, address, v):
    """Sequentially consistent fetch-and-add; returns the old value."""

    def codegen(cx, b, sig, args):
        return b.atomic_rmw("add", b.inttoptr(args[0], I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_swap(typingctx, address, v):
    """Sequentially consistent exchange; returns the old value."""

    def codegen(cx, b, sig, args):
        return b.atomic_rmw("xchg", b.inttoptr(args[0], I64.as_pointer()), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx, address):
    """Sequentially consistent: an acquire could move before an earlier `atomic_swap` on ARM."""

    def codegen(cx, b, sig, args):
        return b.load_atomic(b.inttoptr(args[0], I64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def atomic_store(typingctx, address, v):
    def codegen(cx, b, sig, args):
        b.store_atomic(args[1], b.inttoptr(args[0], I64.as_pointer()), "release", 8)
        return cx.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def store_fence(typingctx):
    """What was stored past the caches comes before what this thread stores from now on."""

    def codegen(cx, b, sig, args):
        if IS_X86:
            call_ir(b, "llvm.x86.sse.sfence", ir.VoidType(), [])
        else:
            b.fence("seq_cst")
        return cx.get_dummy_value()

    return types.void(), codegen


@intrinsic
def cpu_pause(typingctx):
    def codegen(cx, b, sig, args):
        if IS_X86:
            call_ir(b, "llvm.x86.sse2.pause", ir.VoidType(), [])
        elif IS_ARM:
            call_ir(b, "llvm.aarch64.hint", ir.VoidType(), [ir.Constant(I32, 1)])
        return cx.get_dummy_value()

    return types.void(), codegen


@intrinsic
def sched_yield(typingctx):
    """libc's sched_yield, found by name: compiled code that calls it can be cached."""

    def codegen(cx, b, sig, args):
        call_ir(b, "sched_yield", I32, [])
        return cx.get_dummy_value()

    return types.void(), codegen


def _futex_ir(b, operation, address, value):
    """syscall(SYS_futex, address, operation, value, NULL), or sched_yield where there is no futex."""
    if not HAS_FUTEX:
        call_ir(b, "sched_yield", I32, [])
        return
    syscall = cgutils.get_or_insert_function(b.module, ir.FunctionType(I64, [I64], var_arg=True), "syscall")
    b.call(syscall, [I64(_FUTEX), address, I64(operation), value, I64(0)])


@intrinsic
def futex_wait(typingctx, address, old):
    """Sleep until woken, unless the lower 32 bits at address differ from `old`. May wake for no reason."""

    def codegen(cx, b, sig, args):
        _futex_ir(b, _WAIT_PRIVATE, args[0], args[1])
        return cx.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def futex_wake_all(typingctx, address):
    def codegen(cx, b, sig, args):
        if HAS_FUTEX:
            _futex_ir(b, _WAKE_PRIVATE, args[0], I64(1 << 30))
        return cx.get_dummy_value()

    return types.void(types.int64), codegen
