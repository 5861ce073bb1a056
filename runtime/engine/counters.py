"""What the engine counts since its start."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.engine.messages import EngineStatistics
from runtime.engine.slot import Slot
from runtime.memory.prefix import PrefixIndex


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

    def statistics(self, index: PrefixIndex, slots: Sequence[Slot], n_waiting: int) -> EngineStatistics:
        """The counters together with the gauges of this moment."""
        pool = index.pool
        return EngineStatistics(
            prompt_tokens_total=self.prompt_tokens,
            prompt_tokens_cached_total=self.prompt_tokens_cached,
            prompt_seconds_total=self.prompt_ms / 1e3,
            tokens_predicted_total=self.predicted_tokens,
            tokens_predicted_seconds_total=self.predicted_ms / 1e3,
            n_decode_total=self.steps,
            n_tokens_max=self.n_tokens_max,
            n_busy_slots_total=self.busy_slots,
            requests_processing=sum(not slot.idle for slot in slots),
            requests_deferred=n_waiting,
            kv_blocks_used=pool.n_used,
            kv_blocks_total=pool.n_blocks,
            kv_bytes_used=pool.used_bytes,
            kv_bytes_total=pool.total_bytes,
            kv_tokens=sum(slot.sequence.n_tokens for slot in slots),
            points_bytes=index.point_bytes,
            steps_total=self.steps,
            slots=tuple(slot.state() for slot in slots),
        )
