"""One source for every instruction set: its own instruction where there is one, the same bits everywhere."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import llvmlite.binding as llb
import numba as nb
import numpy as np
import pytest
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from runtime.kernels.emit import I8, I32, load_ir, store_ir
from runtime.kernels.isa import ISA, ISAS, choose, dot4_ir
from runtime.kernels.simd import I
from tests.runtime.kernels.harness import EVERYDAY

ROOT = Path(__file__).parents[3]
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"

FORCED = {
    "generic": ("x86-64", ""),
    "avx2": ("haswell", "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2,+ssse3"),
    "avx512": (
        "skylake-avx512",
        "+avx,+avx2,+fma,+f16c,+sse4.2,+ssse3,+avx512f,+avx512bw,+avx512vl,+avx512dq",
    ),
}
NEEDS = {"generic": set(), "avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512vl"}}


@pytest.mark.parametrize(
    ("triple", "features", "name"),
    [
        (X86, {"avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx2"}, "avx512-vnni"),
        (X86, {"avx512f", "avx512bw", "avx512vl", "avx2"}, "avx512"),
        (X86, {"avx512f", "avx2"}, "avx2"),
        (X86, {"avx2", "avxvnni"}, "avx-vnni"),
        (X86, {"avx2"}, "avx2"),
        (X86, {"sse4.2"}, "generic"),
        (ARM, {"neon", "dotprod"}, "dotprod"),
        (ARM, {"neon"}, "generic"),
        ("riscv64-unknown-linux-gnu", set(), "generic"),
    ],
)
def test_the_best_instruction_set_of_a_target_is_chosen(triple: str, features: set[str], name: str) -> None:
    assert choose(triple, frozenset(features)).name == name


def dot_function(biased: bool):
    vector = ir.VectorType(I8, 64)

    @intrinsic
    def dot(typingctx, acc, codes, x, out):
        def codegen(cx, b, sig, args):
            start = load_ir(b, args[0], ir.VectorType(I32, 16))
            total = dot4_ir(b, start, load_ir(b, args[1], vector), load_ir(b, args[2], vector), biased)
            store_ir(b, total, args[3])
            return cx.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    return nb.njit(nb.void(I, I, I, I))(lambda acc, codes, x, out: dot(acc, codes, x, out))


@pytest.mark.parametrize("biased", [False, True])
def test_dot_products_of_extreme_bytes_are_exact(biased: bool) -> None:
    dot, rng = dot_function(biased), np.random.default_rng(0)
    top = 255 if biased else 127
    for _ in range(200):
        codes = rng.choice([0, 1, 127, 128, 129, top, rng.integers(0, top + 1)], 64).clip(0, top)
        x = rng.choice([-127, -1, 0, 1, 127, rng.integers(-127, 128)], 64)
        weights = codes - 128 if biased and not ISA.biased_start else codes
        acc = rng.integers(-(2**20), 2**20, 16)
        buffers = [acc.astype(np.int32), codes.astype(np.uint8), x.astype(np.int8), np.zeros(16, np.int32)]
        dot(*(a.ctypes.data for a in buffers))
        assert np.array_equal(buffers[3], acc + (weights * x).reshape(16, 4).sum(1))


def emitted(isa: str, biased: bool, triple: str, cpu: str, features: str) -> str:
    """Assembly of a function around one dot product of 16 sums, for a machine that need not be this one."""
    module = ir.Module()
    pointer = ir.VectorType(I8, 64).as_pointer()
    sums = ir.VectorType(I32, 16)
    function = ir.Function(
        module, ir.FunctionType(ir.VoidType(), [sums.as_pointer(), pointer, pointer]), "dot"
    )
    b = ir.IRBuilder(function.append_basic_block())
    acc, codes, x = (b.load(a) for a in function.args)
    b.store(dot4_ir(b, acc, codes, x, biased, ISAS[isa]), function.args[0])
    b.ret_void()
    llb.initialize_all_targets()
    llb.initialize_all_asmprinters()
    machine = llb.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)
    parsed = llb.parse_assembly(str(module))
    parsed.verify()
    return str(machine.emit_assembly(parsed))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("isa", "triple", "cpu", "features", "instruction", "count"),
    [
        ("avx512-vnni", X86, "icelake-server", "", "vpdpbusd", 1),
        ("avx512", X86, "skylake-avx512", "", "vpmaddubsw", 1),
        ("avx-vnni", X86, "alderlake", "", "vpdpbusd", 2),
        ("avx2", X86, "haswell", "", "vpmaddubsw", 2),
        ("dotprod", ARM, "neoverse-n1", "", "sdot", 4),
    ],
)
def test_each_instruction_set_multiplies_with_its_own_instruction(
    isa: str, triple: str, cpu: str, features: str, instruction: str, count: int, biased: bool
) -> None:
    assert emitted(isa, biased, triple, cpu, features).count(f"\t{instruction}\t") == count


#: types that, with the everyday ones, reach every step, decoder and start of sums
OTHER_STEPS = ("IQ4_NL", "IQ4_XS", "Q2_K", "TQ2_0")
#: without multiply-add instructions every one of them is a call: fewer types, and still minutes
GENERIC = ("F16", "Q8_0", "Q4_K")
#: a tiny model of each way of computing
FAMILIES = (
    *("llama", "gpt-oss", "gemma3n", "gemma4", "mamba", "mamba2", "rwkv7", "lfm2", "qwen35", "kimi-linear"),
    *("deepseek2", "deepseek32", "deepseek4"),
)


@cache
def digests(program: str, names: tuple[str, ...], isa: str = "") -> dict[str, str]:
    """What a program computes for each name under an instruction set, in one process; "" is the host."""
    env = dict(os.environ)
    if isa:
        env["NUMBA_CPU_NAME"], env["NUMBA_CPU_FEATURES"] = FORCED[isa]
    command = [sys.executable, "-m", f"tests.runtime.{program}", *names]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    used, *lines = run.stdout.splitlines()
    assert used == (isa or ISA.name)
    return dict(line.split() for line in lines)


@pytest.fixture(params=FORCED)
def forced(request: pytest.FixtureRequest) -> str:
    host = {name for name, present in llb.get_host_cpu_features().items() if present}
    if not host >= NEEDS[request.param]:
        pytest.skip(f"this machine has no {request.param}")
    return str(request.param)


@pytest.mark.slow
def test_every_type_gives_the_same_bits_on_every_instruction_set(forced: str) -> None:
    names = GENERIC if forced == "generic" else (*EVERYDAY, *OTHER_STEPS)
    expected = digests("kernels.isa_digests", (*EVERYDAY, *OTHER_STEPS))
    assert digests("kernels.isa_digests", names, forced) == {name: expected[name] for name in names}


@pytest.mark.slow
def test_every_kind_of_model_gives_the_same_bits_on_every_instruction_set(forced: str) -> None:
    assert digests("model_digests", FAMILIES, forced) == digests("model_digests", FAMILIES)
