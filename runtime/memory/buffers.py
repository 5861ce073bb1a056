"""Address space that takes memory where it is touched, and buffers of one size cut from it."""

import mmap
from collections import deque
from contextlib import suppress

import numpy as np
import numpy.typing as npt

# Linux's value; the mmap module names it from Python 3.13 on only.
_MAP_NORESERVE = 0x4000
_SLAB_BYTES = 64 << 20


def reserve(n_bytes: int) -> tuple[mmap.mmap, npt.NDArray[np.uint8]]:
    """A private mapping of zeros, and its bytes; pages exist from the first time they are written."""
    size = max(n_bytes, mmap.PAGESIZE)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without transparent huge pages only makes this slower.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping, np.frombuffer(mapping, np.uint8)


class Buffer:
    """Bytes at an address, for as long as somebody refers to this object.

    With its last reference, on whichever thread that goes, the memory is free for the next to take it.
    """

    __slots__ = ("_free", "_number", "address", "bytes")

    def __init__(self, number: int, data: npt.NDArray[np.uint8], free: "deque[int]") -> None:
        self._number = number
        self._free = free
        self.bytes = data
        self.address = int(data.ctypes.data)

    def __del__(self) -> None:
        self._free.append(self._number)


class Buffers:
    """Makes page-aligned buffers of `n_bytes`, which belong to one thread until they are let go."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._stride = -(-max(1, n_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._per_slab = max(1, _SLAB_BYTES // self._stride)
        self._slabs: list[tuple[mmap.mmap, npt.NDArray[np.uint8]]] = []
        self._n_made = 0
        self._free: deque[int] = deque()

    @property
    def n_used(self) -> int:
        return self._n_made - len(self._free)

    def take(self, zeroed: bool = False) -> Buffer:
        """A buffer: zeros the first time, later what was left in it unless it shall be `zeroed`."""
        if self._free:
            number = self._free.pop()
        else:
            number = self._n_made
            self._n_made += 1
            zeroed = False
            if number == len(self._slabs) * self._per_slab:
                self._slabs.append(reserve(self._per_slab * self._stride))
        slab, place = divmod(number, self._per_slab)
        mapping, data = self._slabs[slab]
        start = place * self._stride
        if zeroed:
            mapping.madvise(mmap.MADV_DONTNEED, start, self._stride)
        return Buffer(number, data[start : start + self.n_bytes], self._free)

    def in_use(self, address: int) -> bool:
        """Is it the address of a buffer that somebody refers to?"""
        for slab, (_, data) in enumerate(self._slabs):
            place, rest = divmod(address - int(data.ctypes.data), self._stride)
            if not rest and 0 <= place < self._per_slab:
                number = slab * self._per_slab + place
                return number < self._n_made and number not in self._free
        return False
