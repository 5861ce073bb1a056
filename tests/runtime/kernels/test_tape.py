"""Ops run in order, once each, by every thread; errors of use are refused."""

import numpy as np

from runtime.kernels.simd import atomic_add, ld_i64, st_i64
from runtime.kernels.tape import JOB_VARS, Op, W, arg, program, variable
from runtime.team import Team, grab


@Op
def push(a, job, ith, nth, ctl):
    """(log, value): append value to the log, once per thread"""
    log = arg(a, 0)
    st_i64(log + 8 * (1 + atomic_add(log, 1)), arg(a, 1))


@Op
def count_items(a, job, ith, nth, ctl):
    """(counters, chunk): add one to each of as many counters as variable 1 says"""
    items = variable(job, 1)
    while True:
        first = grab(ctl, nth, arg(a, 1))
        if first >= items:
            break
        for i in range(first, min(items, first + arg(a, 1))):
            at = arg(a, 0) + 8 * i
            st_i64(at, ld_i64(at) + 1)


def run(team: Team, ops: list[tuple[Op, list[int]]], variables: list[int]) -> bool:
    tape = np.zeros((len(ops), W), np.int64)
    for row, (op, params) in zip(tape, ops, strict=True):
        row[: 1 + len(params)] = [op.address, *params]
    job = np.zeros(JOB_VARS // 8 + len(variables), np.int64)
    job[:2] = [tape.ctypes.data, len(ops)]
    job[JOB_VARS // 8 :] = variables
    return team.run(job.ctypes.data)


def test_every_thread_finishes_an_op_before_any_starts_the_next() -> None:
    log = np.zeros(1 + 3 * 50, np.int64)
    with Team(program(), 3) as team:
        assert run(team, [(push, [log.ctypes.data, i]) for i in range(50)], [])
    assert log[0] == 150
    assert list(log[1:]) == [i for i in range(50) for _ in range(3)]


def test_each_item_of_work_is_done_once_however_many_threads_share_it() -> None:
    for n_threads in (1, 2, 4):
        counters = np.zeros(1000, np.int64)
        with Team(program(), n_threads) as team:
            for chunk in (1, 7, 2000):
                assert run(team, [(count_items, [counters.ctypes.data, chunk])] * 3, [0, 1000])
        assert (counters == 9).all()


def test_an_empty_tape_is_a_run() -> None:
    with Team(program(), 2) as team:
        assert run(team, [], [])


def test_ops_say_what_they_are() -> None:
    assert push.name == "test_tape.push" and repr(push) == "Op(test_tape.push)"
    assert push.__doc__ is not None and push.__doc__.startswith("(log, value)")
