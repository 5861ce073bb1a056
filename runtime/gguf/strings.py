"""String arrays of the metadata: one buffer and its offsets, decoded on demand."""

import struct
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

_PREFIX = 8
_WINDOW = 1 << 15  # bytes; a few times that are in use at once, however large the file says its arrays are
_LOOP_STEP = 1 << 9
_LENGTH = struct.Struct("<Q")


class StringArray(Sequence[str]):
    """Strings as they lie in the file: each behind its length, a little-endian u64.

    `raw` holds them all; `starts` int64 [n + 1] are the offsets of the length prefixes and the end.
    Reading an element as str replaces invalid UTF-8; `byte_strings` gives the exact bytes.
    """

    __slots__ = ("raw", "starts")

    def __init__(self, raw: bytes, starts: npt.NDArray[np.int64]) -> None:
        self.raw = raw
        self.starts = starts

    @classmethod
    def empty(cls) -> "StringArray":
        return cls(b"", np.zeros(1, np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def bytes_at(self, index: int) -> bytes:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.raw[int(self.starts[index]) + _PREFIX : int(self.starts[index + 1])]

    def byte_strings(self) -> list[bytes]:
        """All strings as bytes."""
        raw = self.raw
        first, last = (self.starts[:-1] + _PREFIX).tolist(), self.starts[1:].tolist()
        return [raw[a:b] for a, b in zip(first, last, strict=True)]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.bytes_at(index).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (text.decode("utf-8", "replace") for text in self.byte_strings())

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings, {len(self.raw)} bytes)"


def scan_strings(data: memoryview, position: int, count: int) -> npt.NDArray[np.int64]:
    """Offsets int64 [count + 1] of `count` length-prefixed strings that begin at `position`, and their end.

    Raises IndexError with the number of the string that does not fit into `data`.
    The lengths form a chain that only a loop can follow, but where strings are shorter than 256 bytes and
    hold no NUL their prefixes are the only places with seven zero bytes in a row: those are found
    in one vectorised pass and then proven to be the chain. Anything else is followed one by one.
    """
    starts = np.empty(count + 1, np.int64)
    starts[0] = position
    done = 0
    while done < count:
        found = _scan_window(data, int(starts[done]), count - done)
        starts[done + 1 : done + 1 + len(found)] = found
        done += len(found)
        if len(found) < _LOOP_STEP:
            done = _follow(data, starts, done, min(count, done + _LOOP_STEP))
    return starts


def _scan_window(data: memoryview, position: int, limit: int) -> npt.NDArray[np.int64]:
    """Ends of up to `limit` strings from `position` on, as far as one window of bytes proves them."""
    window = np.frombuffer(data[position : position + min(_WINDOW, 64 + limit * 32)], np.uint8)
    if len(window) < _PREFIX:
        return np.empty(0, np.int64)
    zero = window == 0
    pair = zero[:-1] & zero[1:]
    four = pair[:-2] & pair[2:]
    seven = four[:-3] & four[3:]
    prefixes = np.flatnonzero(seven[1:])
    ends = prefixes + (_PREFIX + window[prefixes].astype(np.int64))
    if not len(prefixes) or prefixes[0] != 0:
        return np.empty(0, np.int64)
    broken = np.flatnonzero(ends[:-1] != prefixes[1:])
    n = int(broken[0]) + 1 if len(broken) else len(ends)
    ends = ends[: min(n, limit)]
    if len(ends) and ends[-1] > len(window):
        ends = ends[:-1]
    return ends + position


def _follow(data: memoryview, starts: npt.NDArray[np.int64], done: int, until: int) -> int:
    """Read prefixes one by one; returns the number of strings known afterwards."""
    position, size = int(starts[done]), len(data)
    ends = []
    for index in range(done, until):
        if position + _PREFIX > size:
            raise IndexError(index)
        position += _PREFIX + _LENGTH.unpack_from(data, position)[0]
        if position > size:
            raise IndexError(index)
        ends.append(position)
    starts[done + 1 : until + 1] = ends
    return until
