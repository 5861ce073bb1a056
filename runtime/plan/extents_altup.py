"""What the ops of alternating updates touch at most, see `runtime.plan.extents`."""

from runtime.kernels import altup
from runtime.kernels.altup import STREAMS
from runtime.plan.extents import Sizes, Spans, touches


@touches(altup.match_length)
def _match_length(s: Sizes, x: int, ldx: int, target: int, ldt: int, n: int) -> Spans:
    yield s.rows("x", x, ldx, n)
    yield s.rows("target", target, ldt, n)


@touches(altup.predict)
def _predict(s: Sizes, x: int, ldx: int, n: int, coefs: int, ldc: int) -> Spans:
    yield s.rows("streams", x, ldx, STREAMS * n)
    yield s.rows("coefficients", coefs, ldc, STREAMS * STREAMS)


@touches(altup.correct)
def _correct(s: Sizes, x: int, ldx: int, n: int, result: int, ldr: int, coefs: int, ldc: int) -> Spans:
    yield s.rows("streams", x, ldx, STREAMS * n)
    yield s.rows("result", result, ldr, n)
    yield s.rows("coefficients", coefs, ldc, STREAMS)


@touches(altup.keep_outliers)
def _keep_outliers(s: Sizes, x: int, ldx: int, n: int, factor: int) -> Spans:
    yield s.rows("x", x, ldx, n)
