"""What crosses the border of the engine thread: commands in, events out, all plain data.

The engine never calls back into a request. It is handed commands (`Engine.submit`, `Engine.post`) from any
thread and hands out events in batches through the one `deliver` callback it was built with.
Every count is a number of tokens, every duration is in milliseconds unless its name says otherwise.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


class StopReason(StrEnum):
    """llama-server's `stop_type`."""

    NONE = "none"
    EOS = "eos"
    LIMIT = "limit"
    WORD = "word"
    CANCELLED = "cancelled"


class CacheSource(StrEnum):
    """Where the reused prefix came from: the farthest tier that contributed a token."""

    NONE = "none"
    RAM = "ram"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """llama-server's sampling fields; the defaults are its own."""

    seed: int = -1
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_keep: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    n_probs: int = 0
    post_sampling_probs: bool = False


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One completion. `request_id` is chosen by the caller and is unique while the request lives.

    `root` separates prefixes that must never be mixed (model identity, adapters, salt): opaque bytes.
    `turn_starts` are the positions at which a message of the conversation begins.
    With `store` False nothing is offered to the store, and the rows serve only what its slot is asked next:
    the conversation goes on from RAM, other slots do not find it.
    """

    request_id: int
    prompt: Tokens
    sampling: SamplingParams = SamplingParams()
    root: bytes = b""
    n_predict: int = -1
    stop: tuple[str, ...] = ()
    id_slot: int = -1
    cache_prompt: bool = True
    return_progress: bool = False
    store: bool = True
    turn_starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenProb:
    """A candidate: natural logarithm of its probability, or the probability after the sampler chain."""

    id: int
    logprob: float
    prob: float


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """A sampled token with its probability data (`top` is empty unless `n_probs` asked for it)."""

    id: int
    chosen: TokenProb | None = None
    top: tuple[TokenProb, ...] = ()


@dataclass(slots=True)
class Timings:
    """Of one request. `prompt_n` excludes the `cache_n` reused tokens."""

    cache_n: int = 0
    cache_source: CacheSource = CacheSource.NONE
    cache_reason: str = ""
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    request_id: int


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The request has a slot and knows what it reuses; its first prefill step is next.

    Comes again when the request, before its first output, had to give its memory to an older one.
    """

    id_slot: int
    n_prompt: int
    n_cached: int


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """Prefill progress; `processed` includes the cached tokens."""

    total: int
    cache: int
    processed: int
    time_ms: float


@dataclass(frozen=True, slots=True)
class Output(Event):
    """New text (whole characters, no part of a stop string) and the tokens behind it; either may be empty."""

    text: str
    tokens: tuple[TokenOutput, ...]
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The last event of a request that was answered.

    `truncated` says that the context was full. `n_cached_total` counts the tokens the slot now remembers.
    """

    id_slot: int
    reason: StopReason
    stopping_word: str
    truncated: bool
    n_prompt: int
    n_cached_total: int
    timings: Timings
    has_new_line: bool = False


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The last event of a request that could not be answered."""

    error: Exception


@dataclass(frozen=True, slots=True)
class SlotState:
    """A snapshot of one slot for /slots. `id_task` is the last request's id, -1 when it never had one."""

    id: int
    n_ctx: int
    is_processing: bool
    id_task: int = -1
    n_tokens: int = 0
    n_prompt_tokens: int = 0
    n_prompt_tokens_processed: int = 0
    n_prompt_tokens_cache: int = 0
    n_decoded: int = 0
    n_remain: int = -1
    has_next_token: bool = False
    has_new_line: bool = False
    n_checkpoints: int = 0
    cache_source: CacheSource = CacheSource.NONE
    cache_reason: str = ""
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    n_predict: int = -1


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counters since start and gauges of now, as llama-server's /metrics needs them."""

    prompt_tokens_total: int = 0
    prompt_tokens_cached_total: int = 0
    prompt_seconds_total: float = 0.0
    tokens_predicted_total: int = 0
    tokens_predicted_seconds_total: float = 0.0
    n_decode_total: int = 0
    n_tokens_max: int = 0
    n_busy_slots_total: int = 0
    requests_processing: int = 0
    requests_deferred: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    kv_bytes_used: int = 0
    kv_bytes_total: int = 0
    kv_tokens: int = 0
    points_bytes: int = 0
    steps_total: int = 0
    slots: tuple[SlotState, ...] = field(default=())
