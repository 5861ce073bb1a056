"""Reading the little-endian fields of an untrusted file: each read is checked against the file's end."""

import struct
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError
from runtime.gguf.strings import StringArray, scan_strings

Scalar = int | float | bool | str
MetadataValue = Scalar | npt.NDArray[np.generic] | StringArray

MAX_STRINGS = 1 << 22
"""String array elements a file may have in total: four times the largest vocabulary and its merges."""


class Fault(Protocol):
    """Makes the error to raise from a message; it adds the file's name."""

    def __call__(self, message: str, *, unsupported: bool = False) -> ModelError: ...


class ValueType(IntEnum):
    """Types of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_NUMPY: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}


class Cursor:
    """A position in a file, `data`, of which nothing is believed."""

    def __init__(self, data: memoryview, fault: Fault) -> None:
        self.data = data
        self.fault = fault
        self.position = 0
        self._strings_left = MAX_STRINGS

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def skip(self, n: int, what: str) -> int:
        """Move over `n` bytes that must exist; returns where they begin."""
        if n > self.remaining:
            raise self.fault(
                f"truncated or damaged: {what} needs {n} bytes at offset {self.position}, "
                f"the file has {len(self.data)} bytes"
            )
        start = self.position
        self.position += n
        return start

    def u32(self, what: str) -> int:
        return int.from_bytes(self.data[(p := self.skip(4, what)) : p + 4], "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.data[(p := self.skip(8, what)) : p + 8], "little")

    def string(self, what: str, limit: int) -> memoryview:
        """The bytes of a length-prefixed string of at most `limit` bytes."""
        n = self.u64(f"the length of {what}")
        if n > min(limit, self.remaining):
            raise self.fault(
                f"truncated or damaged: {what} claims {n} bytes at offset {self.position}, "
                f"the limit is {limit} and {self.remaining} bytes remain"
            )
        start = self.skip(n, what)
        return self.data[start : start + n]

    def name(self, what: str, limit: int) -> str:
        """A key or tensor name: UTF-8, not empty, on one line."""
        raw = bytes(self.string(what, limit))
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fault(f"damaged: {what} is not UTF-8: {raw[:40]!r}") from None
        if not text or not text.isprintable():
            raise self.fault(f"damaged: {what} is not a name: {text[:40]!r}")
        return text

    def value_type(self, key: str) -> ValueType:
        number = self.u32(f"the type of {key}")
        try:
            return ValueType(number)
        except ValueError:
            raise self.fault(f"damaged: {key} has the unknown value type {number}") from None

    def value(self, key: str) -> MetadataValue:
        kind = self.value_type(key)
        if kind is ValueType.ARRAY:
            return self._array(key)
        if kind is ValueType.STRING:
            return str(self.string(key, len(self.data)), "utf-8", "replace")
        return self._scalar(key, kind)

    def _scalar(self, key: str, kind: ValueType) -> Scalar:
        dtype = _NUMPY[kind]
        start = self.skip(dtype.itemsize, key)
        raw = self.data[start : start + dtype.itemsize]
        if kind is ValueType.BOOL:
            if raw[0] > 1:
                raise self.fault(f"damaged: {key} is a bool of value {raw[0]}")
            return bool(raw[0])
        if kind is ValueType.FLOAT32 or kind is ValueType.FLOAT64:
            value: float = struct.unpack("<f" if dtype.itemsize == 4 else "<d", raw)[0]
            return value
        return int.from_bytes(raw, "little", signed=dtype.kind == "i")

    def _array(self, key: str) -> npt.NDArray[np.generic] | StringArray:
        kind = self.value_type(f"elements of {key}")
        if kind is ValueType.ARRAY:
            raise self.fault(f"{key} is an array of arrays, which no known model uses")
        count = self.u64(f"the length of {key}")
        least = 8 if kind is ValueType.STRING else _NUMPY[kind].itemsize
        if count * least > self.remaining:
            raise self.fault(
                f"truncated or damaged: {key} claims {count} elements ({count * least} bytes or more), "
                f"{self.remaining} bytes remain"
            )
        if kind is ValueType.STRING:
            return self._string_array(key, count)
        dtype = _NUMPY[kind]
        start = self.skip(count * dtype.itemsize, key)
        if kind is ValueType.BOOL and count and max(self.data[start : start + count]) > 1:
            raise self.fault(f"damaged: {key} holds a bool that is neither 0 nor 1")
        values = np.frombuffer(self.data, dtype, count, start).copy()
        values.setflags(write=False)
        return values

    def _string_array(self, key: str, count: int) -> StringArray:
        if count > self._strings_left:
            raise self.fault(f"{key} has {count} strings; a file may have {MAX_STRINGS} in all")
        self._strings_left -= count
        try:
            starts = scan_strings(self.data, self.position, count)
        except IndexError as error:
            raise self.fault(
                f"truncated or damaged: string {error} of {key} ends beyond the file's {len(self.data)} bytes"
            ) from None
        start, end = self.position, int(starts[-1])
        self.position = end
        return StringArray(self.data[start:end].tobytes(), starts - start)
