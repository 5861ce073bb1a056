"""Hyper-connections as parts of a plan: rows of four streams in place of a residual."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile
from runtime.kernels import hyperconnect as ops
from runtime.kernels import norms
from runtime.kernels.hyperconnect import GATES, STREAMS
from runtime.kernels.job import f32_bits
from runtime.plan.builder import Plan
from runtime.plan.latent import Keys, store
from runtime.plan.values import Rows, Source
from runtime.plan.weights import padded

MAX_ITERATIONS = 1000


@dataclass(frozen=True, slots=True)
class HyperConnections:
    """`n_embd` floats per stream; `eps` of the norm, `eps_mix` and the iterations of the mixing."""

    n_embd: int
    eps: float
    eps_mix: float
    iterations: int

    @classmethod
    def read(cls, f: ModelFile, n_embd: int, eps: float) -> "HyperConnections":
        """Errors: UnsupportedModel for other than four streams, ModelError for numbers that make no sense."""
        key = f.arch_key
        n_streams = f.get_int(key("hyper_connection.count"))
        if n_streams != STREAMS:
            raise UnsupportedModel(f"{f.path.name}: {n_streams} residual streams, not {STREAMS}")
        iterations = f.get_int(key("hyper_connection.sinkhorn_iterations"), low=1, high=MAX_ITERATIONS)
        eps_mix = f.get_float(key("hyper_connection.epsilon"))
        if eps_mix < 0:
            raise ModelError(f"{f.path.name}: hyper_connection.epsilon is {eps_mix}")
        return cls(n_embd, eps, eps_mix, iterations)


def spread(p: Plan, hc: HyperConnections, x: Rows) -> Rows:
    """Rows of streams that are all copies of x."""
    streams = p.buffer("streams", STREAMS * hc.n_embd)
    p.op(ops.spread, x.address, x.ld, hc.n_embd, streams.address, streams.ld)
    return streams


def previous(p: Plan, keys: Keys, streams: Rows) -> Rows:
    """The streams of the position before each; `keys` keeps those of the latest. Zeros before the first."""
    store(p, keys, streams)
    out = p.buffer("previous streams", streams.width)
    p.op(ops.previous, keys.address, streams.width, out.address, out.ld)
    return out


def enter(p: Plan, hc: HyperConnections, streams: Rows, name: str) -> tuple[Rows, Rows]:
    """What a sub-layer sees of the streams, and the gates by which `leave` gives them its result."""
    m = _numbers(p, hc, streams, name, GATES)
    scales = np.repeat(p.weights.values(f"{name}_scale.weight", 3), [STREAMS, STREAMS, STREAMS**2])
    x = p.buffer("x", hc.n_embd)
    p.op(ops.enter, m.address, m.ld, _constants(p, f"{name} scales", scales),
         p.weights.vector(f"{name}_base.weight", widths=[GATES]), f32_bits(hc.eps_mix), hc.iterations,
         streams.address, streams.ld, hc.n_embd, x.address, x.ld)  # fmt: skip
    return x, m


def leave(p: Plan, hc: HyperConnections, streams: Rows, gates: Rows, y: Rows) -> None:
    """The streams after a sub-layer that gave y."""
    p.op(ops.leave, gates.address, gates.ld, streams.address, streams.ld, hc.n_embd, y.address, y.ld)


def merge(p: Plan, hc: HyperConnections, streams: Rows, name: str) -> Rows:
    """One row of the streams of each."""
    m = _numbers(p, hc, streams, name, STREAMS)
    scales = np.repeat(p.weights.values(f"{name}_scale.weight", 1), STREAMS)
    out = p.buffer("merged", hc.n_embd, streams.count)
    p.op(ops.merge, m.address, m.ld, _constants(p, f"{name} scales", scales),
         p.weights.vector(f"{name}_base.weight", widths=[STREAMS]), f32_bits(hc.eps_mix),
         streams.address, streams.ld, hc.n_embd, out.address, out.ld, out.count)  # fmt: skip
    return out


def _numbers(p: Plan, hc: HyperConnections, streams: Rows, name: str, n: int) -> Rows:
    """fn . norm(streams): one norm over all of a row's streams, without weights."""

    def emit(kind: int, dst: int) -> None:
        p.op(norms.norm_quant, streams.address, streams.ld, p.weights.ones(streams.width), 0, streams.width,
             f32_bits(hc.eps), norms.RMS, dst, kind, streams.count)  # fmt: skip

    source = Source(streams.width, streams.count, emit)
    return p.matmul(source, [f"{name}_fn"], "mixing", widths=[n])


def _constants(p: Plan, name: str, values: npt.NDArray[np.float32]) -> int:
    """Address of f32 values in whole vectors."""
    out = p.arena.array((padded(len(values)),), np.float32, name)
    out[: len(values)] = values
    address: int = out.ctypes.data
    return address
