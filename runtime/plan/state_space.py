"""Selective state spaces (Mamba and Mamba 2) as parts of a plan."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile
from runtime.kernels import mamba as ops
from runtime.kernels.job import f32_bits
from runtime.kernels.simd import LANES
from runtime.kernels.tape import SCRATCH
from runtime.plan.builder import Plan
from runtime.plan.convolution import convolve
from runtime.plan.values import Rows, Source

CACHES = 64 << 20
"""A state that such a model leaves in the caches is gone by the next step: its weights came through."""


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Sizes: channels, states of each, taps of the convolution before them; of Mamba 2, heads and groups.

    In Mamba `rank` is that of the steps' projection, in Mamba 2 the number of heads.
    """

    n_inner: int
    n_state: int
    taps: int
    rank: int
    groups: int

    @classmethod
    def read(cls, f: ModelFile) -> "StateSpace":
        """Errors: ModelError when a key is missing or makes no sense, UnsupportedModel beyond the kernels."""
        key = f.arch_key
        self = cls(
            f.get_int(key("ssm.inner_size"), low=1),
            f.get_int(key("ssm.state_size"), low=1),
            f.get_int(key("ssm.conv_kernel"), low=1),
            f.get_int(key("ssm.time_step_rank"), low=1),
            f.get_int(key("ssm.group_count"), default=1, low=1),
        )
        if self.n_inner % LANES or self.n_state % LANES:
            raise UnsupportedModel(
                f"{f.path.name}: {self.n_inner} channels of {self.n_state} states are not whole {LANES}s"
            )
        if 4 * self.n_inner > SCRATCH:
            raise UnsupportedModel(f"{f.path.name}: {self.n_inner} channels are not supported")
        return self

    @property
    def head_width(self) -> int:
        return self.n_inner // self.rank

    def check_heads(self, f: ModelFile) -> None:
        """Of Mamba 2. Errors: ModelError where they make no sense, UnsupportedModel beyond the kernels."""
        if self.n_inner % self.rank or self.rank % self.groups or self.n_inner % self.groups:
            raise ModelError(
                f"{f.path.name}: {self.n_inner} channels, {self.rank} heads, {self.groups} groups do not fit"
            )
        widths = self.head_width, self.n_inner // self.groups
        if any(width % LANES for width in widths) or self.head_width + self.n_state > ops.WIDEST:
            raise UnsupportedModel(
                f"{f.path.name}: heads of {widths[0]} channels and {self.n_state} states in groups of "
                f"{widths[1]} channels are not supported"
            )


def mamba2(p: Plan, s: StateSpace, prefix: str, h: Source | Rows, residual: Rows, eps: float,
           scale: float = 1.0) -> None:  # fmt: skip
    """residual += scale * the mixer of Mamba 2: projection, convolution, scan, gated norm, projection.

    The projection gives z, then x, B and C, then one step for each head. Without the tensor ``ssm_norm``
    there is only the gate.
    """
    n_both = s.n_inner + 2 * s.groups * s.n_state
    rows = p.matmul(h, [f"{prefix}ssm_in"], "ssm_in", widths=[s.n_inner + n_both + s.rank])
    x = convolve(p, rows.columns(s.n_inner, n_both), [f"{prefix}ssm_conv1d"], [n_both], s.taps, "ssm_conv",
                 silu=True)  # fmt: skip
    steps, y = rows.columns(s.n_inner + n_both, s.rank), rows.columns(s.n_inner, s.n_inner)
    bias, rate, skip = (
        p.weights.vector(f"{prefix}ssm_dt.bias", widths=[s.rank]),
        _numbers(p, f"{prefix}ssm_a", 1, s.rank).ctypes.data,
        _numbers(p, f"{prefix}ssm_d", 1, s.rank).ctypes.data,
    )
    p.op(ops.scan_heads, x.address, x.ld, s.rank, s.head_width, s.groups, s.n_state, steps.address, steps.ld,
         bias, rate, skip, y.address, y.ld, p.tail.state("mamba2-", s.n_inner * s.n_state),
         int(p.weights.n_bytes > CACHES))  # fmt: skip
    p.families.add("mamba")
    p.matmul(_gated(p, s, rows, prefix, eps), [f"{prefix}ssm_out"], "y", residual=residual, scale=scale)


def _gated(p: Plan, s: StateSpace, rows: Rows, prefix: str, eps: float) -> Source:
    """norm(silu(z) * y) of rows of z and y."""
    name = f"{prefix}ssm_norm.weight"
    if not p.weights.has(name):
        return p.activated(rows, s.n_inner, "silu-gate")
    width = s.n_inner // s.groups
    weight = _numbers(p, name, width, s.groups)

    def emit(kind: int, dst: int) -> None:
        p.op(ops.gate_norm_quant, rows.address, rows.ld, 4 * s.n_inner, s.n_inner, s.groups,
             weight.ctypes.data, f32_bits(eps), dst, kind, rows.count)  # fmt: skip

    return Source(s.n_inner, rows.count, emit)


def mamba(p: Plan, s: StateSpace, prefix: str, h: Source | Rows, residual: Rows, eps: float) -> None:
    """residual += the mixer of Mamba: projection, convolution, steps and B and C of its result, scan, gate.

    Where the file says so, steps, B and C are RMS-normed without weights (FalconMamba).
    """
    n, f = s.n_inner, p.file
    rows = p.matmul(h, [f"{prefix}ssm_in"], "ssm_in", widths=[2 * n])
    x = convolve(p, rows.columns(0, n), [f"{prefix}ssm_conv1d"], [n], s.taps, "ssm_conv", silu=True)
    small = p.matmul(x, [f"{prefix}ssm_x"], "ssm_x", widths=[s.rank + 2 * s.n_state])
    if f.get_bool(f.arch_key("ssm.dt_b_c_rms"), default=False):
        if s.rank % LANES:
            raise UnsupportedModel(f"{f.path.name}: norms of steps of rank {s.rank} are not supported")
        p.head_norm(small, 1, s.rank, 2, s.n_state, eps)
    steps = p.matmul(small.columns(0, s.rank), [f"{prefix}ssm_dt"], "ssm_dt", widths=[n], narrow=True)
    b, z = small.columns(s.rank, 2 * s.n_state), rows.columns(n, n)
    rates = p.weights.lines(f"{prefix}ssm_a", s.n_state, n)
    tiled = p.arena.array((n // LANES, s.n_state, LANES), np.float32, f"{prefix}ssm_a")
    tiled[:] = rates.reshape(n // LANES, LANES, s.n_state).transpose(0, 2, 1)
    skip = p.weights.vector(f"{prefix}ssm_d", widths=[n])
    p.op(ops.scan_channels, x.address, x.ld, n, s.n_state, steps.address, steps.ld, b.address, b.ld,
         tiled.ctypes.data, skip, z.address, z.ld, p.tail.state("mamba", n * s.n_state))  # fmt: skip
    p.families.add("mamba")
    p.matmul(x, [f"{prefix}ssm_out"], "y", residual=residual)


def _numbers(p: Plan, name: str, width: int, n: int) -> npt.NDArray[np.float32]:
    """A small 2-D tensor, [n, width], in memory that ops can read."""
    out = p.arena.array((n, width), np.float32, name)
    out[:] = p.weights.lines(name, width, n)
    return out
