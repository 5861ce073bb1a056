"""Gates on the results of attention and recurrences, as parts of a plan."""

from runtime.errors import UnsupportedModel
from runtime.kernels import gates
from runtime.kernels.job import f32_bits
from runtime.kernels.tape import SCRATCH
from runtime.plan.builder import Plan
from runtime.plan.values import Rows, Source

FUNCTIONS = {"sigmoid": gates.SIGMOID, "silu": gates.SILU, "gelu": gates.GELU, "plain": gates.PLAIN}


def part_heads(p: Plan, x: Rows, heads: int, d: int) -> tuple[Rows, Rows]:
    """Columns q0 g0 q1 g1 ... of `heads` heads of queries and gates become g0 g1 ... q0 q1 ..., in place.

    Returns the gates, and what follows them: queries and the rest of the row. Errors: UnsupportedModel for
    more than fits the kernels.
    """
    n = heads * d
    if 8 * n > SCRATCH:
        raise UnsupportedModel(
            f"{p.file.path.name}: {heads} heads of {d} values with gates are not supported"
        )
    p.op(gates.part_heads, x.address, x.ld, heads, d)
    return x.columns(0, n), x.columns(n, x.width - n)


def gated(p: Plan, x: Rows, gate: Rows, function: str = "sigmoid") -> Source:
    """x * function(gate), one of `FUNCTIONS`"""

    def emit(kind: int, dst: int) -> None:
        p.op(
            gates.gate_quant, x.address, x.ld, x.width, gate.address, gate.ld, FUNCTIONS[function], dst, kind
        )

    return Source(x.width, x.count, emit)


def normed_and_gated(
    p: Plan, x: Rows, heads: int, name: str, eps: float, gate: Rows, function: str
) -> Source:
    """rms_norm(x) * function(gate), the norm of each head; `function` is one of `FUNCTIONS`."""
    d = x.width // heads
    w = p.weights.vector(f"{name}.weight", widths=[d])

    def emit(kind: int, dst: int) -> None:
        p.op(gates.norm_gate_quant, x.address, x.ld, heads, d, w, f32_bits(eps), gate.address, gate.ld,
             FUNCTIONS[function], dst, kind)  # fmt: skip

    return Source(x.width, x.count, emit)
