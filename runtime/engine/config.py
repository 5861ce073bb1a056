"""What an engine is built with."""

from dataclasses import dataclass, field

from runtime.engine.resume import CheckpointPolicy
from runtime.memory.layout import BLOCK


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`n_ctx` is the context of one slot, `n_blocks` the size of the block pool.

    `pool_bytes`        memory for blocks, None for that of `n_blocks` whole ones
    `lent_bytes`        of that, for rows of windows that are lent to the store, beside one window per slot;
                        None: for any number of them
    `similarity`        share of a prompt that a slot must remember to be preferred (`-sps`; ≤ 0: off)
    `max_queue`         requests that may wait for a slot
    `max_step_ms`       a step with decodes in it gets no more prefill rows than fit into this time
    `restore_seconds`   how long a request waits for the store before it goes on without
    `offer_min_tokens`  shorter prefixes are not offered to the store
    `checkpoints`       where a model with a tail leaves points to go on from
    `point_bytes`       memory for them; what is lent to the store may go beyond
    """

    n_slots: int
    n_ctx: int
    n_blocks: int
    pool_bytes: int | None = None
    lent_bytes: int | None = None
    similarity: float = 0.1
    max_queue: int = 64
    max_step_ms: float = 100.0
    restore_seconds: float = 10.0
    offer_min_tokens: int = BLOCK
    checkpoints: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    point_bytes: int = 2 << 30
