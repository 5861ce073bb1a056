"""Persistent memory of prompts: what was computed once is found again after a restart, a crash, an upgrade.

The promise, in this order: never a wrong byte; never fail or delay a request; reuse as much as possible.

    with Store.open(state_directory) as store:
        root = store.register(model_fingerprint(weights=..., ...))
        match = store.lookup(root, tokens)                  # longest restorable prefix, at any length
        store.load(match.blocks[0], destinations)           # copied and verified, or False
        store.offer(WriteRequest(root, tokens, blocks, why, on_done))    # written behind, lent until on_done
        store.save_manifest("name", root, tokens)           # named, kept, durable

A prompt is a chain of blocks of 256 positions, each named by a hash of everything before it; the last one may
be partial. A block's bytes are opaque: one segment per cache group, in the layout of the runtime's memory.
Any first rows of a block are valid on their own, so a prompt that leaves a stored one in the middle of a
block reuses it up to there.

Some models can go on only where their state was captured: at points, which lie below the blocks of their
prefix and are found with them (`Match.points`, `load_point`). Of such a model blocks alone restore nothing.

One LMDB file, one process that writes, one thread in it that writes (`offer` queues), one that reads
(`post` queues; `lookup` and `load` may also be called directly). All bytes are checksummed and verified where
they are used; what fails is quarantined and counted. Live bytes stay within a budget: the least recently used
blocks go, leaves first, saved ones never. When the disk fails, requests go on without the store.
"""

from store.administration import Administration
from store.chain import BLOCK
from store.compaction import compact_store
from store.errors import (
    Damaged,
    FingerprintMismatch,
    InvalidName,
    NameTaken,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreUnusable,
    UnknownName,
    WriteRefused,
)
from store.fingerprint import Adapter, DigestCache, Fingerprint, diff, model_fingerprint, weights_digest
from store.forgetting import Forgotten
from store.lookup import BlockRef, Match
from store.manifests import Manifest, ManifestInfo, Saved
from store.names import checked_name
from store.points import PointRef
from store.pruning import Selection
from store.reading import Loaded
from store.requests import BlockData, Outcome, PointData, SaveAs, WriteRequest, WriteResult
from store.statistics import StoreStatistics, figures
from store.store import MAX_POINTS, Store
from store.update import Segment

__all__ = [
    "BLOCK",
    "MAX_POINTS",
    "Adapter",
    "Administration",
    "BlockData",
    "BlockRef",
    "Damaged",
    "DigestCache",
    "Fingerprint",
    "FingerprintMismatch",
    "Forgotten",
    "InvalidName",
    "Loaded",
    "Manifest",
    "ManifestInfo",
    "Match",
    "NameTaken",
    "Outcome",
    "PointData",
    "PointRef",
    "SaveAs",
    "Saved",
    "Segment",
    "Selection",
    "Store",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreStatistics",
    "StoreUnusable",
    "UnknownName",
    "WriteRefused",
    "WriteRequest",
    "WriteResult",
    "checked_name",
    "compact_store",
    "diff",
    "figures",
    "model_fingerprint",
    "weights_digest",
]
