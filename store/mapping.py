"""Where a file is mapped into this process, and having its pages there before they are read.

Huge pages where there can be some: LMDB's binding reads a byte of each page of a value before it hands that
out, which of cold small ones takes longer than copying them does. They are wanted only here, because a fault
in memory for which they are reads 4 MiB, even for a page of the index.
"""

import contextlib
import ctypes
from pathlib import Path

HUGE_PAGE = 2 << 20
_WANT_HUGE, _WANT_SMALL = 14, 15
"""MADV_HUGEPAGE, MADV_NOHUGEPAGE; refused, and no harm done, where the kernel has none"""
_POPULATE_READ = 22
"""MADV_POPULATE_READ, since Linux 5.14"""
_MAPPINGS = Path("/proc/self/maps")


class Mapping:
    """The first mapping of `path` from its beginning on; none where the system does not tell.

    It goes by the name: inodes are not the same everywhere on layered file systems.
    """

    def __init__(self, path: Path) -> None:
        self._address = _find(path)
        self._madvise = getattr(ctypes.CDLL(None), "madvise", None)
        if self._madvise is not None:
            self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def populate(self, start: int, n_bytes: int) -> bool:
        """Have these bytes of the file in memory and mapped; `start` is a multiple of the page size.

        False when the kernel cannot: that too is no error for bytes which are not there.
        """
        first = start // HUGE_PAGE * HUGE_PAGE
        around = -(-(start + n_bytes) // HUGE_PAGE) * HUGE_PAGE - first
        self._advise(first, around, _WANT_HUGE)
        try:
            return self._advise(start, n_bytes, _POPULATE_READ)
        finally:
            self._advise(first, around, _WANT_SMALL)

    def _advise(self, start: int, n_bytes: int, advice: int) -> bool:
        if self._address is None or self._madvise is None:
            return False
        return bool(self._madvise(self._address + start, n_bytes, advice) == 0)


def _find(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        wanted = str(path.resolve(strict=True))
        for line in _MAPPINGS.read_text().splitlines():
            place, _, offset, _, _, *name = line.split(maxsplit=5)
            if name == [wanted] and int(offset, 16) == 0:
                return int(place.partition("-")[0], 16)
    return None
