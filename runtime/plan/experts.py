"""Mixtures of experts as parts of a plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from runtime.errors import ModelError
from runtime.kernels import experts as ops
from runtime.kernels import routing as r
from runtime.kernels.formats import FORMATS
from runtime.kernels.job import f32_bits
from runtime.kernels.quantise import act_bytes
from runtime.kernels.simd import LANES
from runtime.plan.builder import ACTIVATIONS, Plan
from runtime.plan.values import Rows
from runtime.plan.weights import padded

MAX_EXPERTS = 8192

Emit = Callable[[int, int], None]
"""Quantises the rows that experts see to an activation kind, into tiles at an address."""


@dataclass(frozen=True, slots=True)
class Gating:
    """How experts are chosen and weighed.

    `function` is the GGUF number: softmax over all, sigmoid, softmax over the selected, or the root of
    softplus. With `groups` above `groups_used` only experts of the best groups stand for selection. Weights
    are divided by their sum where `normalise` says so, then multiplied by `scale`.
    """

    n_expert: int
    n_used: int
    function: int = r.SOFTMAX
    normalise: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1

    def check(self) -> None:
        """Errors: ModelError for numbers that make no sense."""
        if (
            not 1 <= self.n_used <= self.n_expert <= MAX_EXPERTS
            or self.function not in (r.SOFTMAX, r.SIGMOID, r.SOFTMAX_OF_SELECTED, r.SQRT_SOFTPLUS)
            or not 1 <= self.groups_used <= self.groups
            or self.n_expert % self.groups
            or self.n_used > self.n_expert // self.groups * self.groups_used
        ):
            raise ModelError(f"expert selection {self} makes no sense")


@dataclass(frozen=True, slots=True)
class Routing:
    """The experts of a step's rows: `address` of the tables' descriptor, `n_pairs` at most."""

    address: int
    gating: Gating
    n_pairs: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """f32 rows, one for each pair of a row and an expert, in the routing's order of places."""

    address: int
    ld: int
    width: int


def route(p: Plan, logits: Rows, gating: Gating, bias: str = "", scales: str = "") -> Routing:
    """Choose the experts of each row by `logits`; `bias` names a tensor that only the selection sees,
    `scales` one whose values multiply the weights of the experts that were selected."""
    gating.check()
    routing = _tables(p, gating)
    biases = p.weights.vector(bias, widths=[gating.n_expert]) if bias and p.weights.has(bias) else 0
    p.op(r.route, logits.address, logits.ld, routing.address, gating.function, biases, int(gating.normalise),
         f32_bits(gating.scale), gating.groups, gating.groups_used)  # fmt: skip
    if scales and p.weights.has(scales):
        p.op(r.scale_weights, p.weights.vector(scales, widths=[gating.n_expert]), routing.address)
    p.op(r.dispatch, routing.address)
    return routing


def route_by_token(p: Plan, logits: Rows, gating: Gating, name: str) -> Routing:
    """The table of that name has each token's experts; `logits` say what they count.

    Errors: ModelError for a table of another shape or type, or with experts that do not exist.
    """
    gating.check()
    routing = _tables(p, gating)
    table = p.weights.integers(f"{name}.weight", (p.n_vocab, gating.n_used), gating.n_expert)
    p.op(r.route_by_token, logits.address, logits.ld, routing.address, gating.function, table,
         int(gating.normalise), f32_bits(gating.scale))  # fmt: skip
    p.op(r.dispatch, routing.address)
    return routing


def expert_mlp(
    p: Plan, x: Rows, routing: Routing, up: Sequence[str], down: str, n_ff: int, residual: Rows, *,
    activation: str = "silu-gate", limit: float = 0.0, scale: float = 1.0, weigh_inputs: bool = False,
) -> None:  # fmt: skip
    """residual += scale * sum of weight * down(activation(up(x))) over each row's experts.

    `up` names the matrices of gate and up, or the one that holds both or has no gate beside it. Weights
    multiply the experts' inputs instead of their results where `weigh_inputs` says so.
    """

    def gather(kind: int, dst: int) -> None:
        p.op(ops.gather_quant, x.address, x.ld, x.width, dst, kind, routing.address, int(weigh_inputs))

    width = n_ff * (2 if "gate" in activation else 1) // len(up)
    hidden = _matmul(p, gather, x.width, up, [width] * len(up), "experts.hidden", routing)

    def activate(kind: int, dst: int) -> None:
        p.op(ops.activate_experts, hidden.address, hidden.ld, 4 * padded(n_ff), n_ff, ACTIVATIONS[activation],
             f32_bits(limit), dst, kind, routing.address)  # fmt: skip

    y = _matmul(p, activate, n_ff, [down], [residual.width], "experts.y", routing, narrow=True)
    p.op(ops.combine_experts, residual.address, residual.ld, y.address, y.ld, y.width, f32_bits(scale),
         int(not weigh_inputs), routing.address)  # fmt: skip


def _tables(p: Plan, gating: Gating) -> Routing:
    """A descriptor over tables that all layers with as many experts share."""
    n, k = gating.n_expert, gating.n_used
    pairs = p.options.n_ubatch * k
    sizes = {
        r.T_IDS: pairs, r.T_WEIGHTS: pairs, r.T_PLACE: pairs, r.T_PAIR: pairs, r.T_EXPERT: pairs,
        r.T_START: n + 1, r.T_ACTIVE: n + 1,
    }  # fmt: skip
    words = p.arena.array((r.T_WORDS,), np.int64, "routing")
    words[[r.T_K, r.T_EXPERTS]] = k, n
    for table, size in sizes.items():
        words[table] = p.area(f"routing {n} {k} {table}", 4 * size)
    return Routing(words.ctypes.data, gating, pairs)


def _matmul(
    p: Plan, emit: Emit, k: int, names: Sequence[str], widths: Sequence[int], out: str, routing: Routing,
    *, narrow: bool = False,
) -> Pairs:  # fmt: skip
    """out = x . [W0 | W1 | ...] + biases of each place's expert, each part at a multiple of 16 columns."""
    n_expert = routing.gating.n_expert
    tensors = [
        p.weights.experts_info(f"{name}.weight", k, n, n_expert, narrow=narrow)
        for name, n in zip(names, widths, strict=True)
    ]
    ld = 4 * sum(map(padded, widths))
    y = Pairs(p.area(out, routing.n_pairs * ld), ld, widths[-1])
    column, made = 0, set[int]()
    for type_name, group in groupby(tensors, key=lambda t: t.type.name):
        kind = FORMATS[type_name].act_kind
        act = p.area(f"experts {kind}", routing.n_pairs * act_bytes(kind, k))
        if kind not in made:
            emit(kind, act)
            made.add(kind)
        for part in p.weights.expert_panels([t.name for t in group]):
            p.op(ops.matmul_experts, part.op, part.address, part.expert_bytes, part.rows // LANES,
                 part.stride, act, act_bytes(kind, k), k, y.address + 4 * column, ld, routing.address,
                 *part.op_params)  # fmt: skip
            column += part.rows
    biases = [f"{name}.bias" for name in names]
    if any(map(p.weights.has, biases)):
        address = p.weights.expert_vectors(biases, widths, n_expert)
        p.op(ops.bias_experts, y.address, ld, address, ld, ld // 4, routing.address)
    return y
