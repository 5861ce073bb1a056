"""RWKV 7's token shift and time mix as parts of a plan."""

from collections.abc import Mapping

import numpy as np

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile
from runtime.kernels import wkv
from runtime.kernels.job import f32_bits
from runtime.kernels.simd import LANES
from runtime.plan.builder import Plan
from runtime.plan.values import Rows, Source

NORM_EPS = 64e-5  # of heads, whatever the file says
WIDEST_HEAD = 1024  # whose inputs fit into scratch


def head_width(f: ModelFile, n_embd: int) -> int:
    """Values of a head. Errors: ModelError where they do not fill rows, UnsupportedModel beyond kernels."""
    d = f.get_int(f.arch_key("wkv.head_size"), low=1)
    if n_embd % d:
        raise ModelError(f"{f.path.name}: heads of {d} values do not fill rows of {n_embd}")
    if d % LANES or d > WIDEST_HEAD:
        raise UnsupportedModel(f"{f.path.name}: heads of {d} values are not supported")
    return d


def shift(p: Plan, x: Rows, names: str, n: int) -> list[Source]:
    """``x + (previous x - x) * lerp`` for each of the `n` lines of the tensor `names`."""
    lerps = p.arena.array((n, x.width), np.float32, names)
    lerps[:] = p.weights.lines(f"{names}.weight", x.width, n)
    state = p.tail.state("shift", x.width)
    p.families.add("wkv")

    def source(lerp: int) -> Source:
        def emit(kind: int, dst: int) -> None:
            p.op(wkv.shift_quant, x.address, x.ld, x.width, lerp, dst, kind, state)

        return Source(x.width, x.count, emit)

    return [source(line.ctypes.data) for line in lerps]


def mix(p: Plan, prefix: str, d: int, rows: Mapping[str, Rows]) -> Rows:
    """The heads' results of a time mix, normed and gated; `rows` are those of the projections.

    They are r, w, k, v, rate and gate, and but for layer 0 mix and first (v of layer 0). Names beginning with
    `prefix` are those of the vectors.
    """
    n, ld = rows["r"].width, rows["r"].ld
    assert all(r.ld == ld and r.width == n for r in rows.values())
    out = p.buffer("time mix", n)
    words = p.arena.array((wkv.M_WORDS,), np.int64, "time mix")
    for name, at in rows.items():
        words[getattr(wkv, f"M_{name.upper()}")] = at.address
    vectors = {
        wkv.M_W0: "w0", wkv.M_A0: "a0", wkv.M_K_K: "k_k", wkv.M_K_A: "k_a", wkv.M_R_K: "r_k", wkv.M_LN: "ln",
    }  # fmt: skip
    if "mix" in rows:
        vectors[wkv.M_V0] = "v0"
    for index, name in vectors.items():
        words[index] = p.weights.vector(f"{prefix}{name}.weight", widths=[n])
    words[wkv.M_LN_BIAS] = p.weights.vector(f"{prefix}ln.bias", widths=[n])
    words[[wkv.M_OUT, wkv.M_LD, wkv.M_HEADS, wkv.M_D, wkv.M_EPS, wkv.M_STATE]] = [
        out.address, ld, n // d, d, f32_bits(NORM_EPS), p.tail.state("wkv", n * d),
    ]  # fmt: skip
    p.op(wkv.mix_heads, words.ctypes.data)
    return out
