"""Sequence memory: blocks of 256 positions, shared by whoever has the same prefix."""

from runtime.memory.layout import BLOCK, TILE, GroupLayout, MemoryLayout
from runtime.memory.pool import BlockPool, Lease
from runtime.memory.prefix import Match, PrefixIndex, common_prefix
from runtime.memory.sequence import BlockSequence, SequenceMemory

__all__ = [
    "BLOCK",
    "TILE",
    "BlockPool",
    "BlockSequence",
    "GroupLayout",
    "Lease",
    "Match",
    "MemoryLayout",
    "PrefixIndex",
    "SequenceMemory",
    "common_prefix",
]
