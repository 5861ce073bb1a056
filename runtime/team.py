"""A persistent thread team that lives inside nogil compiled code.

A run hands one program to all threads. They meet at barriers, share work through one counter, and go to
sleep between runs: polling for some microseconds, then yielding, then parked in the kernel, where they
use no processor time.

The control block is one cache line per word:

    GEN       barrier generation         ARRIVED  threads that reached the barrier
    NEXT      next item of work, zeroed by the last thread at each barrier
    STOP      ends the workers           CANCEL   polled between ops and items
    JOB       argument of the current run, and ACTIVE, the number of threads that take part in it
    WORKERS   for each thread the number of the last run it takes part in

Threads park on GEN and on their line of WORKERS; the word after says how many sleep there or are about to.
"""

import os
import threading
import weakref

import numba as nb
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.atomics import futex_wait, futex_wake_all
from runtime.kernels.emit import I64
from runtime.kernels.simd import (
    I,
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap,
    cpu_pause,
    entry,
    inline,
    sched_yield,
)

_LINE = 64
GEN, ARRIVED, NEXT, STOP, CANCEL, JOB, WORKERS = (_LINE * i for i in range(7))
ACTIVE = JOB + 8
_PARKED = 8  # from the word that threads park on

_POLLS = 4000  # about 2 us before the core is given away
_YIELDS = 50  # before sleeping
_NO_RUN = -1
_NO_ITEM = 1 << 62  # beyond any number of items


@nb.njit(**inline)
def _wait_change(address, old):
    """Until the word at address differs from old."""
    n = 0
    while atomic_load(address) == old:
        n += 1
        if n < _POLLS:
            if n & 63 == 0:  # a pause in every poll traps to the hypervisor: 9 us per barrier
                cpu_pause()
        elif n < _POLLS + _YIELDS:
            sched_yield()
        else:
            atomic_add(address + _PARKED, 1)
            if atomic_load(address) == old:
                futex_wait(address, old & 0xFFFFFFFF)
            atomic_add(address + _PARKED, -1)


@nb.njit(**inline)
def _publish(address, value):
    """Store, and wake who sleeps on it. The swap is the fence between the store and reading who does."""
    atomic_swap(address, value)
    if atomic_load(address + _PARKED) > 0:
        futex_wake_all(address)


@nb.njit(**inline)
def barrier(ctl, nth):
    """Wait for all nth threads. The last one resets the work counter."""
    if nth == 1:
        atomic_store(ctl + NEXT, 0)
        return
    generation = atomic_load(ctl + GEN)
    if atomic_add(ctl + ARRIVED, 1) == nth - 1:
        atomic_store(ctl + ARRIVED, 0)
        atomic_store(ctl + NEXT, 0)
        _publish(ctl + GEN, generation + 1)
    else:
        _wait_change(ctl + GEN, generation)


@nb.njit(**inline)
def grab(ctl, nth, chunk):
    """First item of the next `chunk` items of work: whoever is slow takes fewer of them.

    In a cancelled run there are none left. An op may then be half done, which no later op sees: none starts.
    """
    if atomic_load(ctl + CANCEL) != 0:
        return nb.int64(_NO_ITEM)
    return atomic_add(ctl + NEXT, chunk)


@intrinsic
def _call_program(typingctx, fn, job, ith, nth, ctl):
    def codegen(cx, b, sig, args):
        program = ir.FunctionType(ir.VoidType(), [I64] * 4)
        b.call(b.inttoptr(args[0], program.as_pointer()), args[1:])
        return cx.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@nb.njit(nb.void(I, I, I), **entry)
def _work(program, ctl, ith):
    mine, run = ctl + WORKERS + _LINE * ith, 0
    while True:
        _wait_change(mine, run)
        run = atomic_load(mine)
        if atomic_load(ctl + STOP) != 0:
            return
        _call_program(program, atomic_load(ctl + JOB), ith, atomic_load(ctl + ACTIVE), ctl)


@nb.njit(nb.int64(I, I, I, I, I), **entry)
def _lead(program, ctl, n_active, job, run):
    atomic_store(ctl + JOB, job)
    atomic_store(ctl + ACTIVE, n_active)
    for i in range(1, n_active):
        _publish(ctl + WORKERS + _LINE * i, run)
    _call_program(program, job, 0, n_active, ctl)
    return atomic_swap(ctl + CANCEL, 0)


@nb.njit(nb.void(I, I), **entry)
def _set(address, value):
    atomic_store(address, value)


@nb.njit(nb.void(I, I), **entry)
def _stop(ctl, n_threads):
    atomic_store(ctl + STOP, 1)
    for i in range(1, n_threads):
        _publish(ctl + WORKERS + _LINE * i, _NO_RUN)


class Team:
    """`n_threads` threads, the caller of `run` being one of them, that run `program_address`.

    The program is a native ``void(job, ith, nth, ctl)`` that ends with a barrier. One thread at a time may
    call `run` and `close`; `cancel` may be called from any thread. After a fork the child has no workers:
    there `run` raises RuntimeError and `close` does nothing.
    """

    def __init__(self, program_address: int, n_threads: int) -> None:
        if n_threads < 1:
            raise ValueError(f"a team needs at least one thread, not {n_threads}")
        self.n_threads = n_threads
        self._program = program_address
        self._memory = np.zeros(WORKERS + _LINE * (n_threads + 1), np.uint8)
        self._ctl = self._memory.ctypes.data + (-self._memory.ctypes.data % _LINE)
        self._runs = 0
        self._closed = ""
        threads = [
            threading.Thread(
                target=_work,
                args=(program_address, self._ctl, i),
                name=f"compute-{i}",
                daemon=True,
            )
            for i in range(1, n_threads)
        ]
        for thread in threads:
            thread.start()
        self._end = weakref.finalize(self, _end, self._memory, self._ctl, threads)
        _TEAMS.add(self)

    def run(self, job_address: int, n_active: int = 0) -> bool:
        """Run the program on the first `n_active` threads (0: on all), while the others stay parked.

        False if it was cancelled, when its results are to be discarded. Releases the GIL until it is over.
        """
        if self._closed:
            raise RuntimeError(f"the thread team was {self._closed}")
        if not 0 <= n_active <= self.n_threads:
            raise ValueError(f"a team of {self.n_threads} threads cannot run on {n_active}")
        self._runs += 1
        return not _lead(self._program, self._ctl, n_active or self.n_threads, job_address, self._runs)

    def cancel(self) -> None:
        """Make the current run end after the items that threads work at, or the next run if there is none."""
        _set(self._ctl + CANCEL, 1)

    def close(self) -> None:
        """End and join the workers. Safe to repeat; also done when a team is dropped, and at exit."""
        self._closed = self._closed or "closed"
        self._end()

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_TEAMS: "weakref.WeakSet[Team]" = weakref.WeakSet()


def _end(memory: npt.NDArray[np.uint8], ctl: int, threads: list[threading.Thread]) -> None:
    """Stop the workers of a team. `memory` is held until they are gone: they poll it."""
    _stop(ctl, len(threads) + 1)
    for thread in threads:
        thread.join()


def _forget_teams() -> None:
    for team in _TEAMS:
        team._closed = "left behind by a fork"
        team._end.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_teams)
