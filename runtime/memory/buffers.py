"""Address space that takes memory where it is touched, and buffers of one size cut from it."""

import mmap
from collections import deque
from contextlib import suppress

import numpy as np
import numpy.typing as npt

# Linux's value; the mmap module names it from Python 3.13 on only.
_MAP_NORESERVE = 0x4000
_SLAB_BYTES = 64 << 20
_WARM = 4


def reserve(n_bytes: int, huge: bool = True) -> tuple[mmap.mmap, npt.NDArray[np.uint8]]:
    """A private mapping of zeros, and its bytes; pages exist from the first time they are written.

    With `huge` pages that is rarer, each time takes longer, and some come together with their neighbours.
    """
    size = max(n_bytes, mmap.PAGESIZE)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    advice = getattr(mmap, "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE", None)
    if advice is not None:
        # A kernel without transparent huge pages only makes this slower.
        with suppress(OSError):
            mapping.madvise(advice)
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
    """Makes page-aligned buffers of at most `n_bytes`, which belong to one thread until they are let go.

    Of those that were, a few keep their pages, because to be given new ones takes longer than to fill them.
    """

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._stride = _pages(max(1, n_bytes))
        self._per_slab = max(1, _SLAB_BYTES // self._stride)
        self._slabs: list[tuple[mmap.mmap, npt.NDArray[np.uint8]]] = []
        # Of each buffer: how many bytes may have pages.
        self._extents: list[int] = []
        # From the one that was let go the longest ago; then those without pages.
        self._free: deque[int] = deque()
        self._bare: list[int] = []

    @property
    def n_used(self) -> int:
        return len(self._extents) - len(self._free) - len(self._bare)

    def take(self, n_bytes: int | None = None, zeroed: bool = False) -> Buffer:
        """A buffer: zeros the first time, later what was left in it unless it shall be `zeroed`."""
        n_bytes = self.n_bytes if n_bytes is None else n_bytes
        while len(self._free) > _WARM:
            number = self._free.popleft()
            self._trim(number, 0)
            self._bare.append(number)
        number = self._free.pop() if self._free else self._bare.pop() if self._bare else self._make()
        self._trim(number, _pages(n_bytes))
        start = number % self._per_slab * self._stride
        _, data = self._slabs[number // self._per_slab]
        buffer = Buffer(number, data[start : start + n_bytes], self._free)
        if zeroed and self._extents[number]:
            buffer.bytes.fill(0)
        self._extents[number] = max(self._extents[number], _pages(n_bytes))
        return buffer

    def in_use(self, address: int) -> bool:
        """Is it the address of a buffer that somebody refers to?"""
        for slab, (_, data) in enumerate(self._slabs):
            place, rest = divmod(address - int(data.ctypes.data), self._stride)
            if not rest and 0 <= place < self._per_slab:
                number = slab * self._per_slab + place
                return number < len(self._extents) and number not in (*self._free, *self._bare)
        return False

    def _make(self) -> int:
        number = len(self._extents)
        if number == len(self._slabs) * self._per_slab:
            self._slabs.append(reserve(self._per_slab * self._stride, huge=False))
        self._extents.append(0)
        return number

    def _trim(self, number: int, extent: int) -> None:
        """Give back the pages beyond `extent`."""
        beyond = self._extents[number] - extent
        if beyond > 0:
            mapping, _ = self._slabs[number // self._per_slab]
            start = number % self._per_slab * self._stride
            mapping.madvise(mmap.MADV_DONTNEED, start + extent, beyond)
            self._extents[number] = extent


def _pages(n_bytes: int) -> int:
    return -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
