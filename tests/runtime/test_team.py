"""The thread team: cancelled and closed at any time, silent when idle, useless after a fork."""

import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest

from runtime.kernels.simd import atomic_add, atomic_load
from runtime.kernels.tape import Op, W, arg, program
from runtime.team import Team, grab
from tests.idle import assert_it_rests

EMPTY_JOB = np.zeros(8, np.int64)


@Op
def wait_for(a, job, ith, nth, ctl):
    """(flag): until the int64 at flag is set"""
    while atomic_load(arg(a, 0)) == 0:
        pass


@Op
def count_items(a, job, ith, nth, ctl):
    """(flag, count): take 1000 items, count them, and stay with each until the flag is set"""
    while grab(ctl, nth, 1) < 1000:
        atomic_add(arg(a, 1), 1)
        while atomic_load(arg(a, 0)) == 0:
            pass


def waiting_job(flag: np.ndarray, op: Op = wait_for, count: int = 0) -> tuple[np.ndarray, np.ndarray]:
    tape = np.zeros((2, W), np.int64)
    tape[:, 0], tape[:, 1], tape[:, 2] = op.address, flag.ctypes.data, count
    job = np.zeros(8, np.int64)
    job[:2] = [tape.ctypes.data, 2]
    return job, tape


def empty_run(team: Team) -> bool:
    return team.run(EMPTY_JOB.ctypes.data)


def test_thousands_of_runs_follow_each_other() -> None:
    with Team(program(), 3) as team:
        assert all(empty_run(team) for _ in range(3000))


def test_a_parked_team_wakes_up() -> None:
    with Team(program(), 3) as team:
        for _ in range(3):
            assert empty_run(team)
            time.sleep(0.05)


def test_an_idle_team_uses_no_processor_time() -> None:
    with Team(program(), 3) as team:
        empty_run(team)
        assert_it_rests()


def test_cancel_ends_the_run_it_meets_and_no_other() -> None:
    flag = np.zeros(1, np.int64)
    job, _tape = waiting_job(flag)
    results: list[bool] = []
    with Team(program(), 2) as team:
        runner = threading.Thread(target=lambda: results.append(team.run(job.ctypes.data)))
        runner.start()
        time.sleep(0.02)
        team.cancel()
        flag[0] = 1
        runner.join()
        assert results == [False]
        assert empty_run(team)


def test_a_cancelled_op_takes_no_further_items() -> None:
    flag, count = np.zeros(1, np.int64), np.zeros(1, np.int64)
    job, _tape = waiting_job(flag, count_items, count.ctypes.data)
    with Team(program(), 2) as team:
        runner = threading.Thread(target=team.run, args=(job.ctypes.data,))
        runner.start()
        while not count[0]:
            pass
        team.cancel()
        flag[0] = 1
        runner.join()
        assert count[0] <= 2
        assert team.run(job.ctypes.data)
        assert count[0] >= 2000


def test_cancel_between_runs_ends_the_next_one() -> None:
    with Team(program(), 2) as team:
        team.cancel()
        assert not empty_run(team)
        assert empty_run(team)


def test_close_joins_the_workers_and_may_be_repeated() -> None:
    before = set(threading.enumerate())
    team = Team(program(), 4)
    assert len(set(threading.enumerate()) - before) == 3
    team.close()
    team.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="thread team was closed"):
        empty_run(team)


def test_a_dropped_team_ends_its_workers() -> None:
    before = set(threading.enumerate())
    team = Team(program(), 3)
    empty_run(team)
    gone = weakref.ref(team)
    del team
    gc.collect()
    assert gone() is None and set(threading.enumerate()) <= before


def test_a_team_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="at least one thread, not 0"):
        Team(program(), 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_cannot_use_its_parents_team_and_may_close_it() -> None:
    with Team(program(), 2) as team:
        empty_run(team)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                empty_run(team)
            except RuntimeError as error:
                code = 0 if "left behind by a fork" in str(error) else 2
            team.close()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert empty_run(team)


def test_threads_that_take_no_part_stay_parked_and_join_again_later() -> None:
    with Team(program(), 4) as team:
        for n_active in [4, 1, 2, 4, 3, 1, 4] * 200:
            assert team.run(EMPTY_JOB.ctypes.data, n_active)
        with pytest.raises(ValueError, match="a team of 4 threads cannot run on 5"):
            team.run(EMPTY_JOB.ctypes.data, 5)


def test_a_run_leaves_the_interpreter_to_other_threads() -> None:
    flag = np.zeros(1, np.int64)
    job, _tape = waiting_job(flag)
    with Team(program(), 1) as team:
        runner = threading.Thread(target=team.run, args=(job.ctypes.data,))
        runner.start()
        started = time.monotonic()
        sum(range(100_000))
        flag[0] = 1
        runner.join()
        assert time.monotonic() - started < 10
