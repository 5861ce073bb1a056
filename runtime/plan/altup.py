"""Streams of alternating updates as parts of a plan, and the thinning of activations that goes with them."""

from dataclasses import dataclass

from runtime.kernels import altup
from runtime.kernels.altup import STREAMS
from runtime.kernels.formats import FORMATS
from runtime.kernels.job import f32_bits
from runtime.kernels.quantise import act_bytes
from runtime.kernels.simd import LANES
from runtime.plan.builder import Plan
from runtime.plan.values import Rows


@dataclass(frozen=True, slots=True)
class Streams:
    """Rows of `STREAMS` streams of `n` values side by side; the first is the active one."""

    rows: Rows
    n: int

    @classmethod
    def make(cls, p: Plan, n: int) -> "Streams":
        return cls(p.buffer("streams", STREAMS * n), n)

    @property
    def active(self) -> Rows:
        return self.rows.columns(0, self.n)

    @property
    def others(self) -> list[Rows]:
        return [self.rows.columns(i * self.n, self.n) for i in range(1, STREAMS)]


def project(p: Plan, s: Streams, name: str, *, of_active: bool) -> None:
    """Each other stream = its matrix . itself, or . the active stream, made as long as the active one."""
    p.weights.experts_info(f"{name}.weight", s.n, s.n, STREAMS - 1)
    (part,) = p.weights.expert_panels([f"{name}.weight"])
    kind = FORMATS[part.type_name].act_kind
    act = p.area("streams projected", p.options.n_ubatch * act_bytes(kind, s.n))
    for i, stream in enumerate(s.others):
        p.rows(s.active if of_active else stream).emit(kind, act)
        p.op(part.op, part.address + i * part.expert_bytes, part.rows // LANES, act, part.k, stream.address,
             stream.ld, 0, stream.count, *part.op_params)  # fmt: skip
        p.op(altup.match_length, stream.address, stream.ld, s.active.address, s.active.ld, s.n)


def predict(p: Plan, s: Streams, modalities: Rows, name: str) -> None:
    """Every stream from all of them."""
    c = p.matmul(modalities, [name], "stream coefficients", widths=[STREAMS * STREAMS], narrow=True)
    p.op(altup.predict, s.rows.address, s.rows.ld, s.n, c.address, c.ld)


def correct(p: Plan, s: Streams, result: Rows, modalities: Rows, name: str) -> None:
    """Every stream by what `result` differs in from the active one."""
    c = p.matmul(modalities, [name], "stream coefficients", widths=[STREAMS], narrow=True)
    p.op(altup.correct, s.rows.address, s.rows.ld, s.n, result.address, result.ld, c.address, c.ld)


def keep_outliers(p: Plan, x: Rows, factor: float) -> None:
    """What of a row lies more than `factor` standard deviations above its mean, by how much; else 0."""
    p.op(altup.keep_outliers, x.address, x.ld, x.width, f32_bits(factor))
