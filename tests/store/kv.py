"""Deterministic sequence memory for store tests: as in a model, a row's bytes follow from its prefix."""

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from store import (
    BLOCK,
    BlockData,
    BlockRef,
    Fingerprint,
    Outcome,
    PointData,
    PointRef,
    Segment,
    Store,
    WriteRequest,
    WriteResult,
)
from store.repair import inspect

TILE = 16
GROUPS = (("full", "f16/1", 704), ("window", "f16/2", 96))
RING_ROWS, RING_ROW_BYTES = 40, 48
STATE, RING, LOGITS = "state", "ring", "last logits"
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


def rowless_blocks_of(prefix: Tokens) -> tuple[BlockData, ...]:
    starts = range(0, len(prefix), BLOCK)
    return tuple(BlockData(start // BLOCK, min(BLOCK, len(prefix) - start), ()) for start in starts)


def part_bytes(prefix: Tokens, name: str) -> Bytes:
    """A part of the point at the end of `prefix`: a state of fixed size, or the latest rows of a ring."""
    state = int(_prefix_hashes(prefix)[-1])
    if name == RING:
        hashes = _prefix_hashes(prefix)[-RING_ROWS:]
        return np.repeat(hashes, RING_ROW_BYTES // 8).view(np.uint8)
    size = 5_000 if name == STATE else 800
    return np.random.default_rng((state, len(name))).integers(0, 256, size, dtype=np.uint8)


def point_of(prefix: Tokens, n_tokens: int, *, logits: bool = False) -> PointData:
    names = (STATE, RING, LOGITS) if logits else (STATE, RING)
    parts = tuple(Segment(name, name + "/1", 64, part_bytes(prefix[:n_tokens], name)) for name in names)
    return PointData(n_tokens, parts)


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
        points: Sequence[int] = (),
    ) -> None:
        self.results: list[WriteResult] = []
        self._settled = threading.Event()
        blocks = rowless_blocks_of(prefix) if scale == 0 else blocks_of(prefix, scale)[first:]
        captured = tuple(point_of(prefix, n_tokens) for n_tokens in points)
        store.offer(WriteRequest(root, prefix, blocks, why, self._done, captured))

    def _done(self, result: WriteResult) -> None:
        self.results.append(result)
        self._settled.set()

    def wait(self) -> WriteResult:
        assert self._settled.wait(120), "the offer was never settled"
        return self.results[0]


def write(
    store: Store,
    root: bytes,
    prefix: Tokens,
    why: str = "prompt_end",
    scale: int = 1,
    points: Sequence[int] = (),
) -> WriteResult:
    """Offer all of `prefix`, of a model without rows when `scale` is 0, and wait for it."""
    result = Offer(store, root, prefix, why, scale, points=points).wait()
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


def resume(store: Store, root: bytes, prompt: Tokens, scale: int = 1) -> int:
    """Load the farthest point of `prompt` that is sound and all blocks up to it; every byte is compared.

    Returns where it lies, 0 when there is none.
    """
    match = store.lookup(root, prompt)
    for ref in match.points:
        assert ref.n_tokens <= match.n_tokens
        if load_point(store, ref, prompt):
            blocks = match.blocks[: -(-ref.n_tokens // BLOCK)]
            wanted = [[] if scale == 0 else destinations(block, scale) for block in blocks]
            if all(store.load(block, each) for block, each in zip(blocks, wanted, strict=True)):
                for block, each in zip(blocks, wanted, strict=True):
                    check_rows(prompt, block, each, scale)
                return ref.n_tokens
    return 0


def load_point(store: Store, ref: PointRef, prompt: Tokens) -> bool:
    prefix = prompt[: ref.n_tokens]
    expected = {name: part_bytes(prefix, name) for name in sorted(ref.parts)}
    wanted = [Segment(name, name + "/1", 64, np.full_like(data, 0xEE)) for name, data in expected.items()]
    if not store.load_point(ref, wanted):
        return False
    for segment in wanted:
        assert np.array_equal(segment.data, expected[segment.group]), f"wrong bytes at {ref.n_tokens}"
    return True


def check_rows(prompt: Tokens, ref: BlockRef, loaded: Sequence[Segment], scale: int = 1) -> None:
    for group, segment in enumerate(loaded):
        expected = segment_bytes(prompt, ref.index, ref.n_rows, group, scale)
        assert np.array_equal(rows(segment.data, ref.n_rows), rows(expected, ref.n_rows)), (
            f"wrong bytes in block {ref.index}, group {segment.group}"
        )
