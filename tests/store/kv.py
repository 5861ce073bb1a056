"""Deterministic sequence memory for store tests: a block's bytes follow from its prefix, like the real ones."""

import hashlib
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from store import BLOCK, BlockData, BlockRef, Fingerprint, Outcome, Segment, Store, WriteRequest, WriteResult

TILE = 16
GROUPS = (("full", "f16/1", 704), ("window", "f16/2", 96))
FINGERPRINT = Fingerprint((("schema", 1), ("weights", b"w" * 32), ("numerics", "dense/1")))

Tokens = npt.NDArray[np.int32]


def tokens(*runs: tuple[int, int]) -> Tokens:
    """Concatenated runs of `(seed, length)`: equal runs give equal tokens."""
    parts = [np.random.default_rng(seed).integers(0, 49_000, length) for seed, length in runs]
    return np.concatenate(parts).astype(np.int32)


def tile_bytes(prefix: Tokens, tile: int, group: int, scale: int = 1) -> npt.NDArray[np.uint8]:
    """Bytes of one 16-position tile; rows of positions that the prefix lacks are zero."""
    _, _, unit = GROUPS[group]
    row = unit * scale // TILE
    out = np.zeros((TILE, row), np.uint8)
    for offset in range(TILE):
        position = tile * TILE + offset
        if position < len(prefix):
            key = prefix[: position + 1].tobytes() + bytes((group,))
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
            out[offset] = np.random.default_rng(seed).integers(0, 256, row)
    return out.reshape(-1)


_cache: dict[tuple[bytes, int, int, int, int], npt.NDArray[np.uint8]] = {}


def segment_bytes(
    prefix: Tokens, index: int, n_rows: int, group: int, scale: int = 1
) -> npt.NDArray[np.uint8]:
    """Bytes of a block's first ``ceil(n_rows / 16)`` tiles."""
    upto = index * BLOCK + n_rows
    key = (hashlib.blake2b(prefix[:upto].tobytes()).digest(), index, n_rows, group, scale)
    if key not in _cache:
        first = index * BLOCK // TILE
        tiles = range(first, first + -(-n_rows // TILE))
        _cache[key] = np.concatenate([tile_bytes(prefix[:upto], tile, group, scale) for tile in tiles])
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


def rows(data: npt.NDArray[np.uint8], n_rows: int) -> npt.NDArray[np.uint8]:
    """The valid rows of a segment."""
    return data.reshape(-1, data.size // (-(-n_rows // TILE) * TILE))[:n_rows]


def restore(store: Store, root: bytes, prompt: Tokens, scale: int = 1) -> int:
    """Look `prompt` up, load what is found, compare every byte with what it must be; return the tokens restored."""
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
