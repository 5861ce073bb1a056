"""The sizes and cache types that a plan is made for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Sizes that a plan is built for. `n_ctx` is the context of one sequence in tokens.

    `rotate_k` and `rotate_v` Hadamard-rotate heads before they are stored. With `embeddings` the plan ends
    with the hidden states of all rows instead of logits.
    """

    n_ctx: int
    n_ubatch: int
    max_runs: int
    max_outputs: int
    key_type: str = "f16"
    value_type: str = "f16"
    rotate_k: bool = False
    rotate_v: bool = False
    embeddings: bool = False

    @property
    def cache(self) -> str:
        """Everything about the cache types that decides stored bytes."""
        return f"{self.key_type}{'h' * self.rotate_k}/{self.value_type}{'h' * self.rotate_v}"
