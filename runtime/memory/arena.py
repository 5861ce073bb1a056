"""Address space for the blocks of one cache group, backed by memory as it is touched."""

import mmap

import numpy as np
import numpy.typing as npt

from runtime.memory.buffers import reserve
from runtime.memory.layout import GroupLayout

_HUGE_PAGE = 2 << 20


def stride(group: GroupLayout) -> int:
    """Bytes from one block of the group to the next: what a block takes, whole pages.

    Those of windows come and go one by one. Where that costs little they begin at huge pages.
    """
    n_bytes = max(1, group.block_bytes)
    huge = _up(n_bytes, _HUGE_PAGE)
    return huge if group.window and huge - n_bytes <= n_bytes // 8 else _up(n_bytes, mmap.PAGESIZE)


class Arena:
    """`n_blocks` blocks of a group, of which none takes memory until it is touched."""

    def __init__(self, group: GroupLayout, n_blocks: int) -> None:
        self.block_bytes = group.block_bytes
        self.stride = stride(group)
        # A huge page that two blocks share would come back whole when one of them is touched.
        separate = self.stride % _HUGE_PAGE == 0
        self._mapping, data = reserve(
            self.stride * n_blocks + (_HUGE_PAGE if separate else 0), huge=separate or not group.window
        )
        base = int(data.ctypes.data)
        self._start = _up(base, _HUGE_PAGE) - base if separate else 0
        self._bytes = data[self._start :]
        self.address = base + self._start

    def view(self, block: int, n_bytes: int) -> npt.NDArray[np.uint8]:
        start = block * self.stride
        return self._bytes[start : start + n_bytes]

    def give_back(self, block: int) -> None:
        """The block's memory is the system's again; touched next, it is zero."""
        self._mapping.madvise(mmap.MADV_DONTNEED, self._start + block * self.stride, self.stride)


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
