"""The sizes and cache types that a plan is made for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Sizes that a plan is built for. `n_ctx` is the context of one sequence in tokens.

    `rotate_k` and `rotate_v` tell whether heads are Hadamard-rotated before they are stored; None leaves it
    to cache type and head size (see `runtime.plan.attention`). With `embeddings` the plan ends with the
    hidden states of all rows instead of logits.
    """

    n_ctx: int
    n_ubatch: int
    max_runs: int
    max_outputs: int
    key_type: str = "f16"
    value_type: str = "f16"
    rotate_k: bool | None = None
    rotate_v: bool | None = None
    embeddings: bool = False
