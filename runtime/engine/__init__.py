"""Slots, step planning, resuming, sampling: from requests to events on one thread."""

from runtime.engine.commands import (
    CaptureSlot,
    EraseSlot,
    InstallPrefix,
    PrefixInstalled,
    SlotAnswer,
    SlotCaptured,
    SlotErased,
)
from runtime.engine.config import EngineConfig
from runtime.engine.embedding import Embedded, EmbedRequest
from runtime.engine.engine import Engine
from runtime.engine.messages import (
    CacheSource,
    EngineStatistics,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Output,
    Progress,
    SamplingParams,
    SlotState,
    Started,
    StopReason,
    Timings,
    TokenOutput,
    TokenProb,
)
from runtime.engine.port import BlockViews, LoadDone, LookupDone, MemoryPort, PrefixSnapshot
from runtime.engine.resume import CacheReason

__all__ = [
    "BlockViews",
    "CacheReason",
    "CacheSource",
    "CaptureSlot",
    "EmbedRequest",
    "Embedded",
    "Engine",
    "EngineConfig",
    "EngineStatistics",
    "EraseSlot",
    "Event",
    "Failed",
    "Finished",
    "GenerateRequest",
    "InstallPrefix",
    "LoadDone",
    "LookupDone",
    "MemoryPort",
    "Output",
    "PrefixInstalled",
    "PrefixSnapshot",
    "Progress",
    "SamplingParams",
    "SlotAnswer",
    "SlotCaptured",
    "SlotErased",
    "SlotState",
    "Started",
    "StopReason",
    "Timings",
    "TokenOutput",
    "TokenProb",
]
