"""Pieces of a forward pass with a mixture of experts."""

from dataclasses import dataclass, replace

from runtime.errors import ModelError
from runtime.gguf import ModelFile
from runtime.kernels.routing import SIGMOID, SOFTMAX, SOFTMAX_OF_SELECTED, SQRT_SOFTPLUS
from runtime.models import blocks
from runtime.models.hyper import Decoder, Layer
from runtime.plan.builder import Plan
from runtime.plan.experts import Gating, expert_mlp, route
from runtime.plan.values import Rows

__all__ = [
    "SIGMOID",
    "SOFTMAX",
    "SOFTMAX_OF_SELECTED",
    "SQRT_SOFTPLUS",
    "Experts",
    "mixture",
    "moe",
    "shared",
]


@dataclass(frozen=True, slots=True)
class Experts:
    """How a model's experts are chosen, how wide they are (`n_ff`, all shared ones together `n_ff_shared`).

    A layer has experts from `n_dense` on, where its number from 1 is a multiple of `step`.
    """

    gating: Gating
    n_ff: int
    n_ff_shared: int
    n_dense: int
    step: int

    @classmethod
    def read(
        cls, f: ModelFile, d: Decoder, *, function: int = SOFTMAX, normalise: bool = True, n_shared: int = 0
    ) -> "Experts":
        """What the file does not say is as given here. Errors: ModelError for numbers that make no sense."""
        key = f.arch_key
        n_ff = f.get_int(key("expert_feed_forward_length"), default=0) or d.layers[0].n_ff
        n_shared = f.get_int(key("expert_shared_count"), default=n_shared)
        gating = Gating(
            n_expert=f.get_int(key("expert_count")),
            n_used=f.get_int(key("expert_used_count")),
            function=f.get_int(key("expert_gating_func"), default=0) or function,
            normalise=f.get_bool(key("expert_weights_norm"), default=normalise),
            scale=f.get_float(key("expert_weights_scale"), default=0.0) or 1.0,
            groups=f.get_int(key("expert_group_count"), default=0) or 1,
            groups_used=f.get_int(key("expert_group_used_count"), default=0) or 1,
        )
        if gating.groups == 1:
            gating = replace(gating, groups_used=1)
        step = f.get_int(key("interleave_moe_layer_step"), default=0) or 1
        self = cls(
            gating, n_ff,
            f.get_int(key("expert_shared_feed_forward_length"), default=0) or n_shared * n_ff,
            f.get_int(key("leading_dense_block_count"), default=0), step,
        )  # fmt: skip
        if self.n_ff < 1 or self.n_ff_shared < 0:
            raise ModelError(
                f"{f.path.name}: experts of {self.n_ff} and {self.n_ff_shared} values make no sense"
            )
        return self

    @staticmethod
    def any_in(f: ModelFile) -> bool:
        """Whether a model of an architecture with and without experts has some."""
        return f.get_int(f.arch_key("expert_count"), default=0) > 0

    def has(self, layer: Layer) -> bool:
        return layer.index >= self.n_dense and (layer.index + 1) % self.step == 0


def mixture(
    p: Plan, e: Experts, layer: Layer, h: Rows, residual: Rows, *, activation: str = "silu-gate",
    limit: float = 0.0, scale: float = 1.0, weigh_inputs: bool = False,
) -> None:  # fmt: skip
    """residual += scale * the weighed experts of each row of h; without those that are shared

    Experts may work on a projection of h, ``ffn_latent_down``, whose way back is ``ffn_latent_up``.
    """
    n = layer.prefix
    logits = p.matmul(h, [f"{n}ffn_gate_inp"], "router", widths=[e.gating.n_expert])
    routing = route(p, logits, e.gating, bias=f"{n}exp_probs_b.bias")
    up = [f"{n}ffn_gate_exps", f"{n}ffn_up_exps"]
    if "gate" not in activation:
        up = up[1:]
    elif p.weights.has(f"{n}ffn_gate_up_exps.weight"):
        up = [f"{n}ffn_gate_up_exps"]
    down = f"{n}ffn_down_exps"
    if not p.weights.has(f"{n}ffn_latent_down.weight"):
        expert_mlp(p, h, routing, up, down, e.n_ff, residual, activation=activation, limit=limit, scale=scale,
                   weigh_inputs=weigh_inputs)  # fmt: skip
        return
    inputs = p.matmul(h, [f"{n}ffn_latent_down"], "latent")
    results = p.buffer("latent results", inputs.width)
    p.clear(results)
    expert_mlp(p, inputs, routing, up, down, e.n_ff, results, activation=activation, limit=limit,
               weigh_inputs=weigh_inputs)  # fmt: skip
    p.matmul(results, [f"{n}ffn_latent_up"], "y", residual=residual, scale=scale)


def shared(
    p: Plan, e: Experts, layer: Layer, h: Rows, residual: Rows, *, activation: str = "silu-gate",
    limit: float = 0.0, scale: float = 1.0,
) -> None:  # fmt: skip
    """residual += scale * the experts that every row goes to, where the layer has any"""
    if p.weights.has(f"{layer.prefix}ffn_up_shexp.weight"):
        blocks.feed_forward(
            p, layer, h, n_ff=e.n_ff_shared, suffix="_shexp", residual=residual, scale=scale,
            activation=f"{activation}-capped" if limit else activation, limit=limit,
        )  # fmt: skip


def moe(
    p: Plan,
    d: Decoder,
    e: Experts | None,
    layer: Layer,
    x: Rows,
    *,
    pre: str = "ffn_norm",
    scale: float = 1.0,
) -> None:
    """x += scale * (mixture(h) + shared(h)) with h = pre(x), or the plain MLP in layers without experts"""
    if e is None or not e.has(layer):
        return blocks.mlp(p, d, layer, x, pre=pre, residual_scale=scale)
    h = p.keep(blocks.norm(p, d, x, layer.prefix + pre))
    shared(p, e, layer, h, x, scale=scale)
    mixture(p, e, layer, h, x, scale=scale)
    return None
