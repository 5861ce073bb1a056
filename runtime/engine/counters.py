"""What the engine counts since its start."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Tokens, milliseconds and steps; `busy_slots` sums the slots with rows over all steps."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_ms: float = 0.0
    predicted_tokens: int = 0
    predicted_ms: float = 0.0
    steps: int = 0
    busy_slots: int = 0
    n_tokens_max: int = 0
