"""Address space that takes memory where it is touched, and buffers of one size cut from it."""

import mmap
import weakref
from collections import deque
from contextlib import suppress

import numpy as np
import numpy.typing as npt

# Linux's value; the mmap module names it from Python 3.13 on only.
_MAP_NORESERVE = 0x4000
_SLAB_BYTES = 64 << 20
_HUGE_PAGE = 2 << 20
# Buffers that are shorter keep to small pages: whole huge ones would make them longer by more than an eighth.
_LONG = 8 * _HUGE_PAGE
_SLICE_BYTES = _HUGE_PAGE


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


class Kept:
    """How much memory buffers may keep beside what is in use: together at most `n_bytes` (None: any).

    Several `Buffers` may share it. What is in use counts, and is never taken away.
    """

    def __init__(self, n_bytes: int | None = None) -> None:
        self.n_bytes = n_bytes
        self.n_resident = 0
        self.members: weakref.WeakSet[Buffers] = weakref.WeakSet()

    def has_room(self, n_bytes: int) -> bool:
        return self.n_bytes is None or self.n_resident + n_bytes <= self.n_bytes

    def grow(self, n_bytes: int) -> None:
        """So many more bytes come into use: what is free makes room for them."""
        for buffers in self.members:
            while not self.has_room(n_bytes) and buffers.give_back():
                pass
        self.n_resident += n_bytes


class Buffer:
    """Bytes at an address, for as long as somebody refers to this object.

    With its last reference, on whichever thread that goes, the memory is free for the next to take it.
    """

    __slots__ = ("_number", "_returned", "address", "bytes")

    def __init__(self, number: int, data: npt.NDArray[np.uint8], returned: "deque[int]") -> None:
        self._number = number
        self._returned = returned
        self.bytes = data
        self.address = int(data.ctypes.data)

    def __del__(self) -> None:
        self._returned.append(self._number)


class Buffers:
    """Makes page-aligned buffers of at most `n_bytes`, which belong to one thread until they are let go.

    To be given new pages takes several times as long as to fill them. So those that were let go keep theirs
    as far as `kept` allows, and `prepare` gives pages to the next one before it is wanted. Long ones lie in
    huge pages, of which the last may be partly beyond what is counted.
    """

    def __init__(self, n_bytes: int, kept: Kept | None = None) -> None:
        self.n_bytes = n_bytes
        self._page = _HUGE_PAGE if n_bytes >= _LONG else mmap.PAGESIZE
        self._whole = _up(max(1, n_bytes), mmap.PAGESIZE)
        self._stride = _up(self._whole, self._page)
        self._per_slab = max(1, _SLAB_BYTES // self._stride)
        self._kept = kept if kept is not None else Kept()
        self._kept.members.add(self)
        # Each as its mapping, where its first buffer begins in it, and its bytes from there on.
        self._slabs: list[tuple[mmap.mmap, int, npt.NDArray[np.uint8]]] = []
        # Of each buffer: how many bytes may have pages, counted in small ones.
        self._extents: list[int] = []
        # From the one that was let go the longest ago.
        self._free: list[int] = []
        self._returned: deque[int] = deque()

    @property
    def n_used(self) -> int:
        return len(self._extents) - len(self._free) - len(self._returned)

    def take(self, n_bytes: int | None = None) -> Buffer:
        """A buffer: zeros where it never was used, else what was left there."""
        n_bytes = self.n_bytes if n_bytes is None else n_bytes
        extent = _up(n_bytes, mmap.PAGESIZE)
        self._collect()
        number = self._closest(extent)
        self._trim(number, extent)
        self._kept.grow(extent - self._extents[number])
        self._extents[number] = extent
        return Buffer(number, self._bytes(number)[:n_bytes], self._returned)

    def prepare(self) -> bool:
        """Add a slice of pages to a free buffer; False: one has them all, or there is no room to keep more.

        2 MiB take less than a millisecond, unless the machine itself has to be given them.
        """
        self._collect()
        number = max(self._free, key=self._extents.__getitem__, default=None)
        begin = 0 if number is None else self._extents[number]
        end = min(begin + _SLICE_BYTES, self._whole)
        if begin == end or not self._kept.has_room(end - begin):
            return False
        if number is None:
            number = self._make()
            self._free.insert(0, number)
        self._bytes(number)[begin : end : mmap.PAGESIZE] = 0
        self._kept.grow(end - begin)
        self._extents[number] = end
        return True

    def give_back(self) -> bool:
        """Of free buffers with pages, the one that was let go the longest ago loses them; False: none has."""
        self._collect()
        number = next((number for number in self._free if self._extents[number]), None)
        if number is not None:
            self._trim(number, 0)
        return number is not None

    def in_use(self, address: int) -> bool:
        """Is it the address of a buffer that somebody refers to?"""
        self._collect()
        for slab, (_, _, data) in enumerate(self._slabs):
            place, rest = divmod(address - int(data.ctypes.data), self._stride)
            if not rest and 0 <= place < self._per_slab:
                number = slab * self._per_slab + place
                return number < len(self._extents) and number not in self._free
        return False

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())

    def _closest(self, extent: int) -> int:
        """The free buffer with the fewest pages beyond `extent`, else with the most; made if none is free.

        Of equals the last to be let go: part of it may still be in a cache.
        """
        if not self._free:
            return self._make()

        def distance(number: int) -> tuple[bool, int]:
            has = self._extents[number]
            return has < extent, abs(has - extent)

        number = min(reversed(self._free), key=distance)
        self._free.remove(number)
        return number

    def _make(self) -> int:
        number = len(self._extents)
        if number == len(self._slabs) * self._per_slab:
            huge = self._page == _HUGE_PAGE
            size = self._per_slab * self._stride
            mapping, data = reserve(size + (_HUGE_PAGE if huge else 0), huge)
            start = -int(data.ctypes.data) % self._page
            self._slabs.append((mapping, start, data[start : start + size]))
        self._extents.append(0)
        return number

    def _bytes(self, number: int) -> npt.NDArray[np.uint8]:
        start = number % self._per_slab * self._stride
        return self._slabs[number // self._per_slab][2][start : start + self._stride]

    def _trim(self, number: int, extent: int) -> None:
        """Give back the pages beyond `extent`."""
        beyond = self._extents[number] - extent
        if beyond <= 0:
            return
        begin, end = _up(extent, self._page), _up(self._extents[number], self._page)
        if begin < end:
            mapping, first, _ = self._slabs[number // self._per_slab]
            start = first + number % self._per_slab * self._stride
            mapping.madvise(mmap.MADV_DONTNEED, start + begin, end - begin)
        self._extents[number] = extent
        self._kept.n_resident -= beyond


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
