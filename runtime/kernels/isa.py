"""Instruction sets and the one primitive that differs between them.

Everything else is written for vectors of 16 lanes, which LLVM splits where registers are narrower, so
the order of floating-point operations, and with it every bit, is the same everywhere. The dot product
of groups of four bytes has no portable instruction:

    acc[i] += sum over t of codes[4i + t] * x[4i + t]        codes u8, x s8 in -127..127, acc i32

It is exact on every path. Two forms, since the older instruction saturates at 16 bits:

plain    codes are 0..127
biased   codes are w + 128 for w in -128..127. Where `biased_start` is set the bytes are multiplied as they
         are and the caller starts its sums at -128 * sum(x); elsewhere w itself is multiplied, from 0.

    name          instruction                          lanes at once
    avx512-vnni   vpdpbusd zmm                         16
    avx512        vpmaddubsw, vpmaddwd zmm             16
    avx-vnni      vpdpbusd ymm                         8
    avx2          vpmaddubsw, vpmaddwd ymm             8
    dotprod       sdot                                 4
    generic       widen and multiply                   4
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llvmlite.binding as llb
from llvmlite import ir
from numba.core import config

from runtime.kernels.emit import (
    I8,
    I16,
    I32,
    Builder,
    Value,
    call_ir,
    concat_ir,
    const,
    part_ir,
)

Dot = Callable[[Builder, Value, Value, Value], Value]


@dataclass(frozen=True, slots=True)
class Isa:
    """`lanes` sums per native dot product; `widths`: activation columns of a tile that registers can hold."""

    name: str
    lanes: int
    plain: Dot
    biased: Dot
    biased_start: bool
    widths: tuple[int, int, int]


def host_features() -> frozenset[str]:
    """The features numba compiles for, so that code and choice of instructions agree."""
    if config.CPU_FEATURES is not None:
        return frozenset(f[1:] for f in config.CPU_FEATURES.split(",") if f.startswith("+"))
    return frozenset(name for name, present in llb.get_host_cpu_features().items() if present)


def _vpdpbusd(b: Builder, acc: Value, codes: Value, x: Value) -> Value:
    return call_ir(b, f"llvm.x86.avx512.vpdpbusd.{acc.type.count * 32}", acc.type, [acc, codes, x])


def _to_signed(b: Builder, codes: Value) -> Value:
    return b.xor(codes, const(codes.type, 0x80))


def _absolute(b: Builder, w: Value) -> Value:
    return call_ir(b, f"llvm.abs.v{w.type.count}i8", w.type, [w, ir.Constant(ir.IntType(1), 0)])


def _maddubs512(b: Builder, acc: Value, codes: Value, x: Value) -> Value:
    pairs = ir.VectorType(I16, 32)
    p = call_ir(b, "llvm.x86.avx512.pmaddubs.w.512", pairs, [codes, x])
    return b.add(acc, call_ir(b, "llvm.x86.avx512.pmaddw.d.512", acc.type, [p, const(pairs, 1)]))


def _maddubs512_biased(b: Builder, acc: Value, codes: Value, x: Value) -> Value:
    """|w| <= 128 times +-x: a pair stays below 2 * 128 * 127 < 2^15."""
    w = _to_signed(b, codes)
    negative = b.icmp_signed("<", w, const(w.type, 0))
    signed_x = b.select(negative, b.sub(const(x.type, 0), x), x)
    return _maddubs512(b, acc, _absolute(b, w), signed_x)


def _maddubs256(b: Builder, acc: Value, codes: Value, x: Value) -> Value:
    pairs = ir.VectorType(I16, 16)
    p = call_ir(b, "llvm.x86.avx2.pmadd.ub.sw", pairs, [codes, x])
    return b.add(acc, call_ir(b, "llvm.x86.avx2.pmadd.wd", acc.type, [p, const(pairs, 1)]))


def _maddubs256_biased(b: Builder, acc: Value, codes: Value, x: Value) -> Value:
    w = _to_signed(b, codes)
    signed_x = call_ir(b, "llvm.x86.avx2.psign.b", x.type, [x, w])
    return _maddubs256(b, acc, _absolute(b, w), signed_x)


def _sdot(b: Builder, acc: Value, codes: Value, x: Value) -> Value:
    return call_ir(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", acc.type, [acc, codes, x])


def _sdot_biased(b: Builder, acc: Value, codes: Value, x: Value) -> Value:
    return _sdot(b, acc, _to_signed(b, codes), x)


def _widening(b: Builder, acc: Value, codes: Value, x: Value) -> Value:
    """255 * 127 still fits 16 bits, so products are exact there and sums in 32 bits."""
    wide = ir.VectorType(I16, codes.type.count)
    products = b.mul(b.zext(codes, wide), b.sext(x, wide))
    n = acc.type.count
    for t in range(4):
        every_fourth = ir.Constant(ir.VectorType(I32, n), list(range(t, 4 * n, 4)))
        acc = b.add(acc, b.sext(b.shuffle_vector(products, products, every_fourth), acc.type))
    return acc


ISAS = {
    isa.name: isa
    for isa in (
        Isa("avx512-vnni", 16, _vpdpbusd, _vpdpbusd, True, (8, 4, 1)),
        Isa("avx512", 16, _maddubs512, _maddubs512_biased, False, (8, 4, 1)),
        Isa("avx-vnni", 8, _vpdpbusd, _vpdpbusd, True, (4, 2, 1)),
        Isa("avx2", 8, _maddubs256, _maddubs256_biased, False, (4, 2, 1)),
        Isa("dotprod", 4, _sdot, _sdot_biased, False, (4, 2, 1)),
        Isa("generic", 4, _widening, _widening, True, (4, 2, 1)),
    )
}


def choose(triple: str, features: frozenset[str]) -> Isa:
    """The best instruction set for a target."""
    name = "generic"
    if triple.startswith(("x86_64", "amd64")):
        if {"avx512f", "avx512bw", "avx512vl"} <= features:
            name = "avx512-vnni" if "avx512vnni" in features else "avx512"
        elif "avx2" in features:
            name = "avx-vnni" if "avxvnni" in features else "avx2"
    elif triple.startswith(("aarch64", "arm64")) and "dotprod" in features:
        name = "dotprod"
    return ISAS[name]


CPU_NAME = config.CPU_NAME or llb.get_host_cpu_name()
TRIPLE = llb.get_default_triple()
FEATURES = host_features()
IS_X86 = TRIPLE.startswith(("x86_64", "amd64"))
IS_ARM = TRIPLE.startswith(("aarch64", "arm64"))
HAS_HALF = IS_ARM or "f16c" in FEATURES
ISA = choose(TRIPLE, FEATURES)
#: whether streams of weights gain by software prefetch, four of them per thread: 13 -> 15 GB/s on Sapphire
#: Rapids. Zen 4's own prefetchers do better on one plain stream of quantised weights: 20 -> 30 GB/s
PREFETCHES = not CPU_NAME.startswith("znver")


def dot4_ir(b: Builder, acc: Value, codes: Value, x: Value, biased: bool = False, isa: Isa = ISA) -> Value:
    """The dot product of the module's docstring for any multiple of the native width."""
    dot = isa.biased if biased else isa.plain
    n = isa.lanes
    if acc.type.count == n:
        return dot(b, acc, codes, x)
    parts = [
        dot(b, part_ir(b, acc, i, n), part_ir(b, codes, 4 * i, 4 * n), part_ir(b, x, 4 * i, 4 * n))
        for i in range(0, acc.type.count, n)
    ]
    return concat_ir(b, parts)


def lookup16_ir(b: Builder, codebook: Sequence[int], codes: Value) -> Value:
    """codebook[c] for bytes c in 0..15, values in 0..255."""
    n = 4 * ISA.lanes
    name = {64: "llvm.x86.avx512.pshuf.b.512", 32: "llvm.x86.avx2.pshuf.b"}.get(n)
    if IS_ARM:
        name = "llvm.aarch64.neon.tbl1.v16i8"
    elif name is None and "ssse3" in FEATURES:
        name = "llvm.x86.ssse3.pshuf.b.128"
    if name is None:
        found = const(codes.type, 0)
        for i, value in enumerate(codebook):
            here = b.icmp_unsigned("==", codes, const(codes.type, i))
            found = b.select(here, const(codes.type, value), found)
        return found
    table = ir.Constant(ir.VectorType(I8, n), list(codebook) * (n // 16))
    parts = [
        call_ir(b, name, table.type, [table, part_ir(b, codes, i, n)]) for i in range(0, codes.type.count, n)
    ]
    return concat_ir(b, parts)
