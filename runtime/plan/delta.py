"""Layers of the gated delta rule as parts of a plan."""

from dataclasses import dataclass

from runtime.errors import ModelError, UnsupportedModel
from runtime.kernels import delta
from runtime.kernels.job import f32_bits
from runtime.kernels.simd import LANES
from runtime.kernels.tape import SCRATCH
from runtime.plan.builder import Plan
from runtime.plan.values import Rows
from runtime.plan.weights import padded

MAX_HEADS, MAX_HEAD = 4096, 512


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """Heads of a delta rule: `n_k` of queries and keys for `n_v` of values, all of `d` values.

    Head h of values goes with head ``h // sharing % n_k`` of keys.
    """

    n_k: int
    n_v: int
    d: int
    sharing: int = 1

    @property
    def n_keys(self) -> int:
        """Columns of all queries, and of all keys."""
        return self.n_k * self.d

    @property
    def n_values(self) -> int:
        return self.n_v * self.d

    @property
    def width(self) -> int:
        """Columns of q, k and v."""
        return 2 * self.n_keys + self.n_values

    def check(self, where: str) -> None:
        """Errors: ModelError for numbers that make no sense, UnsupportedModel beyond the kernels' sizes."""
        if not (1 <= self.n_k <= self.n_v <= MAX_HEADS and self.n_v % self.n_k == 0 and self.d >= 1):
            raise ModelError(
                f"{where}: a delta rule of {self.n_v} heads over {self.n_k} of {self.d} values makes no sense"
            )
        if self.d % LANES or self.d > MAX_HEAD or 4 * self.n_values > SCRATCH:
            raise UnsupportedModel(
                f"{where}: a delta rule of {self.n_v} heads of {self.d} values is not supported"
            )


def normalise_keys(p: Plan, x: Rows, h: DeltaHeads, eps: float) -> None:
    """Queries and keys of rows q, k, v to length 1, in place; queries are divided by sqrt(d) too."""
    p.op(delta.l2_heads, x.address, x.ld, 2 * h.n_k, h.d, f32_bits(eps), h.n_k, f32_bits(h.d**-0.5))


def head_gates(p: Plan, beta: Rows, alpha: Rows, group: int, stride: int, h: DeltaHeads, prefix: str) -> Rows:
    """Rows of beta = sigmoid(beta), then e = exp(a * softplus(alpha + dt)), of each value head.

    Columns of beta and alpha lie in groups of `group` heads, `stride` columns apart.
    """
    rate, dt = (p.weights.vector(f"{prefix}{name}", widths=[h.n_v]) for name in ("ssm_a", "ssm_dt.bias"))
    out = p.buffer("delta gates", 2 * padded(h.n_v))
    p.op(delta.delta_gates, beta.address, alpha.address, beta.ld, h.n_v, group, 4 * stride, rate, dt,
         out.address, out.ld, 4 * padded(h.n_v))  # fmt: skip
    return out


def channel_gates(p: Plan, beta: Rows, f: Rows, x: Rows, h: DeltaHeads, prefix: str) -> Rows:
    """Rows of beta = sigmoid(beta) of each head, e = exp(a * softplus(f + dt)) of each channel, and e k.

    `x` are the rows of q, k, v, keys being normalised already.
    """
    rate = p.weights.vector(f"{prefix}ssm_a", widths=[h.n_v])
    dt = p.weights.vector(f"{prefix}ssm_dt.bias", widths=[h.n_values])
    out = p.buffer("delta gates", padded(h.n_v) + 2 * h.n_values)
    k = x.columns(h.n_keys, h.n_keys)
    p.op(delta.channel_gates, beta.address, beta.ld, f.address, f.ld, k.address, k.ld, h.n_v, h.d, rate, dt,
         out.address, out.ld, 4 * padded(h.n_v))  # fmt: skip
    return out


def delta_rule(p: Plan, x: Rows, gates: Rows, h: DeltaHeads, *, per_channel: bool = False) -> Rows:
    """What the heads read from their states, for rows of q, k, v and the gates made for them."""
    out = p.buffer("delta", h.n_values)
    p.families.add("delta-net")
    op = delta.delta_rule_channels if per_channel else delta.delta_rule
    p.op(op, x.address, x.ld, h.n_k, h.sharing, h.n_v, h.d, gates.address, gates.ld, 4 * padded(h.n_v),
         out.address, out.ld, p.tail.state(f"delta{h.d}x", h.n_v * h.d * h.d))  # fmt: skip
    return out
