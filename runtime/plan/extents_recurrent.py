"""What the ops of convolutions and recurrences touch at most, see `runtime.plan.extents`.

States are not of the plan's memory: their addresses come with each run.
"""

from runtime.kernels.conv import conv
from runtime.plan.extents import Sizes, Span, Spans, touches


@touches(conv)
def _conv(
    s: Sizes, x: int, ldx: int, before: int, after: int, n: int, taps: int, weight: int, bias: int, silu: int,
    out: int, ldo: int, state: int,
) -> Spans:  # fmt: skip
    yield s.rows("x", x, ldx, n)
    yield s.rows("before", x + before, ldx, n)
    yield s.rows("after", x + after, ldx, n)
    yield Span("weight", weight, 4 * taps * n)
    if bias:
        yield Span("bias", bias, 4 * n)
    yield s.rows("out", out, ldo, n)
