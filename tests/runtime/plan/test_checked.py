"""Checked mode names the op and the buffer of a wrong address, and changes no bit."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime import model as loading
from runtime.errors import CheckFailed
from runtime.evaluate import LinearSequence
from runtime.kernels.simd import st_f32
from runtime.kernels.tape import Op, arg
from runtime.memory.pool import BlockPool
from runtime.model import LoadedModel
from runtime.plan.builder import Plan
from runtime.plan.checked import Checker
from runtime.plan.extents import EXTENTS
from runtime.runner import Run
from tests.models import smollm2_path
from tests.runtime.evaluation import ARCHS, DATA, ENCODERS, all_logits, arch, hidden_rows, model

LLAMA = DATA / "archs" / "llama.gguf"
IN_REPOSITORY = [path.stem for path in sorted((DATA / "archs").glob("*.gguf"))]


@Op
def write_a_float(a, job, ith, nth, ctl):
    """(address)"""
    if ith == 0:
        st_f32(arg(a, 0), 1.0)


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERD_CHECKED", "1")


def tokens(loaded: LoadedModel, n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, loaded.runner.n_vocab, n).astype(np.int32)


def plan_of(loaded: LoadedModel) -> Plan:
    return loaded.runner._plan


def same_bits(path: Path, monkeypatch: pytest.MonkeyPatch, n_threads: int = 2, repack: bool = True) -> None:
    with model(path, n_ctx=256, n_ubatch=40, max_runs=1, n_threads=n_threads, repack=repack) as loaded:
        assert plan_of(loaded).arena.guarded
        ids = tokens(loaded, 50)
        logits = all_logits(loaded, ids, (40, 9, 1))
    monkeypatch.setenv("EMBERD_CHECKED", "0")
    with model(path, n_ctx=256, n_ubatch=40, max_runs=1) as loaded:
        assert not plan_of(loaded).arena.guarded
        assert np.array_equal(all_logits(loaded, ids), logits)


@pytest.mark.parametrize("name", IN_REPOSITORY)
def test_sound_plans_pass_with_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same_bits(DATA / "archs" / f"{name}.gguf", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize("name", ARCHS)
def test_every_architecture_passes(name: str, repack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    same_bits(arch(name), monkeypatch, n_threads=3, repack=repack)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_passes(name: str) -> None:
    with model(arch(name), n_ctx=256, n_ubatch=40, max_runs=2) as loaded:
        first, second = hidden_rows(loaded, tokens(loaded, 30), tokens(loaded, 10))
        assert np.isfinite(first).all() and np.isfinite(second).all()


@pytest.mark.slow
@pytest.mark.parametrize("repack", [True, False])
def test_a_real_model_passes(repack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    same_bits(smollm2_path(), monkeypatch, repack=repack)


def test_each_address_on_the_tape_is_asserted() -> None:
    with model(LLAMA, n_ctx=256, n_ubatch=16) as loaded:
        plan, layout = plan_of(loaded), loaded.runner.layout
        n_asserted = 0
        for op, i in {op: i for i, op in enumerate(plan.ops)}.items():
            for j, value in enumerate(plan.tape[i]):
                if isinstance(value, int) and value > 1 << 32:
                    plan.tape[i][j] = value + (1 << 45)
                    with pytest.raises(CheckFailed, match=rf"op {i}, {re.escape(op.name)}: parameter "):
                        Checker(plan, layout)
                    plan.tape[i][j] = value
                    n_asserted += 1
        Checker(plan, layout)
        assert n_asserted >= 15


def test_a_buffer_that_is_too_small_for_the_largest_step_is_named() -> None:
    with model(LLAMA, n_ctx=256, n_ubatch=16) as loaded:
        plan = plan_of(loaded)
        i = next(i for i, op in enumerate(plan.ops) if op.name == "norms.norm_quant")
        x = plan.tape[i][0]
        assert isinstance(x, int)
        plan.tape[i][0] = x + 64
        with pytest.raises(
            CheckFailed, match=r"parameter x needs \d+ bytes at 0x\w+, \d+ are left of x \(\d+ b"
        ):
            Checker(plan, loaded.runner.layout)


def test_parameters_that_are_missing_are_noticed() -> None:
    with model(LLAMA, n_ctx=256, n_ubatch=16) as loaded:
        plan = plan_of(loaded)
        plan.tape[-1].pop()
        with pytest.raises(CheckFailed, match=r"op \d+, \w+\.matmul: takes other parameters than the 7"):
            Checker(plan, loaded.runner.layout)


def with_last_op(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """Plans end with an op that writes beside the buffer x, and whose extent lies about it."""
    build = loading.builder

    def builder(architecture: str, *, draft: bool) -> Callable[[Plan], None]:
        def extended(plan: Plan) -> None:
            build(architecture, draft=draft)(plan)
            region = next(r for r in plan.arena.regions if r.name == "x")
            plan.op(write_a_float, region.address + region.n_bytes + offset)

        return extended

    monkeypatch.setattr(loading, "builder", builder)
    monkeypatch.setitem(EXTENTS, write_a_float, lambda sizes, address: iter(()))


@pytest.mark.parametrize("offset", [0, 60])
def test_an_op_that_writes_beyond_a_buffer_is_named_with_it(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_last_op(monkeypatch, offset)
    with model(LLAMA, n_ctx=256, n_ubatch=16) as loaded:
        ids = tokens(loaded, 4)
        with pytest.raises(
            CheckFailed, match=r"op \d+, test_checked.write_a_float, wrote beyond x \(\d+ bytes"
        ):
            all_logits(loaded, ids)


def test_an_op_that_stays_within_its_buffer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with_last_op(monkeypatch, -4)
    with model(LLAMA, n_ctx=256, n_ubatch=16) as loaded:
        all_logits(loaded, tokens(loaded, 4))


def test_an_op_without_extents_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_last_op(monkeypatch, -4)
    monkeypatch.delitem(EXTENTS, write_a_float)
    refused = pytest.raises(CheckFailed, match=r"write_a_float: runtime/plan/extents.py does not say")
    with refused, model(LLAMA, n_ctx=256, n_ubatch=16):
        pass


def test_blocks_that_no_pool_has_in_use_are_refused() -> None:
    with model(LLAMA, n_ctx=512, n_ubatch=16) as loaded:
        runner, ids = loaded.runner, tokens(loaded, 4)
        sequence = LinearSequence(runner, 512)
        runner.step([Run(ids, 0, sequence.tables)])
        pool = BlockPool(runner.layout, 4)
        held, dropped = pool.allocate(), pool.allocate()
        pool.drop(dropped)
        for block, shift, sound in [(held, 0, True), (held, 64, False), (dropped, 0, False), (3, 0, False)]:
            tables = tuple(np.array([a + shift, 0]) for a in pool.addresses(block))
            if sound:
                runner.step([Run(ids, 0, tables)])
                continue
            with pytest.raises(CheckFailed, match=r"run 0: block 0 of group \w+, 0x\w+, is not in use"):
                runner.step([Run(ids, 0, tables)])
        tables = tuple(np.array([a]) for a in pool.addresses(held))
        with pytest.raises(CheckFailed, match=r"the block table of group \w+ is not int64 \[2\]"):
            runner.step([Run(ids, 254, tables)])


def test_a_run_is_refused_that_sees_rows_of_a_window_which_were_given_back() -> None:
    with model(DATA / "archs" / "gemma3.gguf", n_ctx=512, n_ubatch=16) as loaded:
        layout = loaded.runner.layout
        (window,) = layout.windowed
        pool = BlockPool(layout, 2)
        blocks = [pool.allocate(), pool.allocate()]
        tables = tuple(np.array(column) for column in zip(*map(pool.addresses, blocks), strict=True))
        pool.give_back(window, blocks[0])
        last_seen = 256 + layout.groups[window].window - 1
        loaded.runner.step([Run(tokens(loaded, 4), last_seen, tables)])
        with pytest.raises(CheckFailed, match="block 0 of group window"):
            loaded.runner.step([Run(tokens(loaded, 4), last_seen - 1, tables)])
