"""Deterministic sequence memory for store tests: as in a model, a row's bytes follow from its prefix."""

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from store import BLOCK, BlockData, BlockRef, Fingerprint, Outcome, Segment, Store, WriteRequest, WriteResult
from store.repair import inspect

TILE = 16
GROUPS = (("full", "f16/1", 704), ("window", "f16/2", 96))
FINGERPRINT = Fingerprint((("schema", 1), ("weights", b"w" * 32), ("numerics", "dense/1")))

Tokens = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


def open_store(folder: Path, budget_bytes: int = 64 << 20, **options: Any) -> Store:
    """A store that does not care how full the disk is."""
    return Store.open(folder, budget_bytes=budget_bytes, **({"min_free_bytes": 0} | options))


def problems(store: Store) -> list[str]:
    """What does not fit together in the store's tables."""
    return store.environment.read(lambda txn: inspect(store.environment, txn))


def tokens(*runs: tuple[int, int]) -> Tokens:
    """Concatenated runs of `(seed, length)`: equal runs give equal tokens."""
    parts = [np.random.default_rng(seed).integers(0, 49_000, length) for seed, length in runs]
    return np.concatenate(parts).astype(np.int32)


def _prefix_hashes(prefix: Tokens) -> npt.NDArray[np.uint64]:
    """One number per position that depends on every token up to it."""
    hashes = []
    state = 0xCBF29CE484222325
    for token in prefix.tolist():
        state = ((state ^ token) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        hashes.append(state)
    return np.array(hashes, np.uint64)


_cache: dict[tuple[bytes, int, int, int], Bytes] = {}


def segment_bytes(prefix: Tokens, index: int, n_rows: int, group: int, scale: int = 1) -> Bytes:
    """Bytes of a block's first ``ceil(n_rows / 16)`` tiles; rows behind `n_rows` are zero."""
    upto = index * BLOCK + n_rows
    key = (hashlib.blake2b(prefix[:upto].tobytes(), digest_size=16).digest(), index, group, scale)
    if key not in _cache:
        row_bytes = GROUPS[group][2] * scale // TILE
        out = np.zeros((-(-n_rows // TILE) * TILE, row_bytes), np.uint8)
        seeds = _prefix_hashes(prefix[:upto])[index * BLOCK :, None]
        columns = np.arange(group * 1_000_003, group * 1_000_003 + row_bytes, dtype=np.uint64)[None, :]
        mixed = (seeds ^ (columns * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
        out[:n_rows] = (mixed >> np.uint64(37)).astype(np.uint8)
        _cache[key] = out.reshape(-1)
    return _cache[key]


def blocks_of(prefix: Tokens, scale: int = 1) -> tuple[BlockData, ...]:
    blocks = []
    for start in range(0, len(prefix), BLOCK):
        n_rows = min(BLOCK, len(prefix) - start)
        segments = tuple(
            Segment(
                name, layout, unit * scale, segment_bytes(prefix, start // BLOCK, n_rows, group, scale).copy()
            )
            for group, (name, layout, unit) in enumerate(GROUPS)
        )
        blocks.append(BlockData(start // BLOCK, n_rows, segments))
    return tuple(blocks)


class Offer:
    """An offer whose settlement can be waited for."""

    def __init__(
        self,
        store: Store,
        root: bytes,
        prefix: Tokens,
        why: str = "prompt_end",
        scale: int = 1,
        first: int = 0,
    ) -> None:
        self.results: list[WriteResult] = []
        self._settled = threading.Event()
        store.offer(WriteRequest(root, prefix, blocks_of(prefix, scale)[first:], why, self._done))

    def _done(self, result: WriteResult) -> None:
        self.results.append(result)
        self._settled.set()

    def wait(self) -> WriteResult:
        assert self._settled.wait(20), "the offer was never settled"
        return self.results[0]


def write(store: Store, root: bytes, prefix: Tokens, why: str = "prompt_end", scale: int = 1) -> WriteResult:
    result = Offer(store, root, prefix, why, scale).wait()
    assert result.outcome is Outcome.WRITTEN, result
    return result


def destinations(ref: BlockRef, scale: int = 1) -> list[Segment]:
    n_tiles = -(-ref.n_rows // TILE)
    return [
        Segment(name, layout, unit * scale, np.full(n_tiles * unit * scale, 0xEE, np.uint8))
        for name, layout, unit in GROUPS
    ]


def rows(data: Bytes, n_rows: int) -> Bytes:
    """The valid rows of a segment."""
    return data.reshape(-1, data.size // (-(-n_rows // TILE) * TILE))[:n_rows]


def restore(store: Store, root: bytes, prompt: Tokens, scale: int = 1) -> int:
    """Look `prompt` up, load what is found and compare every byte; return the number of tokens restored."""
    match = store.lookup(root, prompt)
    restored = 0
    for ref in match.blocks:
        wanted = destinations(ref, scale)
        if not store.load(ref, wanted):
            break
        check_rows(prompt, ref, wanted, scale)
        restored += ref.n_rows
    return restored


def check_rows(prompt: Tokens, ref: BlockRef, loaded: Sequence[Segment], scale: int = 1) -> None:
    for group, segment in enumerate(loaded):
        expected = segment_bytes(prompt, ref.index, ref.n_rows, group, scale)
        assert np.array_equal(rows(segment.data, ref.n_rows), rows(expected, ref.n_rows)), (
            f"wrong bytes in block {ref.index}, group {segment.group}"
        )
