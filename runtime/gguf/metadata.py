"""Typed access to metadata: the reader says what it needs, and a wrong file is told precisely why."""

from collections.abc import Mapping
from typing import TypeVar, overload

import numpy as np

from runtime.errors import ModelError
from runtime.gguf.cursor import MetadataValue
from runtime.gguf.strings import StringArray

T = TypeVar("T")


class _Required:
    pass


_REQUIRED = _Required()


class Metadata:
    """Getters over a file's metadata. Without a default, a missing key is a ModelError.

    Integers must lie in ``[low, high]``. The plural getters take one value per layer: an array of exactly
    `n`, or a scalar that holds for all.
    """

    def __init__(self, metadata: Mapping[str, MetadataValue]) -> None:
        self.metadata = metadata

    @overload
    def get_int(self, key: str, *, low: int = ..., high: int = ...) -> int: ...
    @overload
    def get_int(self, key: str, default: T, *, low: int = ..., high: int = ...) -> int | T: ...
    def get_int(
        self, key: str, default: object = _REQUIRED, *, low: int = 0, high: int = 2**31 - 1
    ) -> object:
        value = self._find(key, default)
        if value is default:
            return default
        return _int(key, value, low, high)

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: T) -> float | T: ...
    def get_float(self, key: str, default: object = _REQUIRED) -> object:
        value = self._find(key, default)
        return default if value is default else _float(key, value)

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: T) -> bool | T: ...
    def get_bool(self, key: str, default: object = _REQUIRED) -> object:
        value = self._find(key, default)
        if value is not default and not isinstance(value, bool):
            raise _wrong(key, value, "a bool")
        return value

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: T) -> str | T: ...
    def get_str(self, key: str, default: object = _REQUIRED) -> object:
        value = self._find(key, default)
        if value is not default and not isinstance(value, str):
            raise _wrong(key, value, "a string")
        return value

    @overload
    def get_ints(self, key: str, n: int, *, low: int = ..., high: int = ...) -> tuple[int, ...]: ...
    @overload
    def get_ints(
        self, key: str, n: int, default: T, *, low: int = ..., high: int = ...
    ) -> tuple[int, ...] | T: ...
    def get_ints(
        self, key: str, n: int, default: object = _REQUIRED, *, low: int = 0, high: int = 2**31 - 1
    ) -> object:
        value = self._find(key, default)
        if value is default:
            return default
        return tuple(_int(key, v, low, high) for v in _per_layer(key, value, n))

    @overload
    def get_floats(self, key: str, n: int) -> tuple[float, ...]: ...
    @overload
    def get_floats(self, key: str, n: int, default: T) -> tuple[float, ...] | T: ...
    def get_floats(self, key: str, n: int, default: object = _REQUIRED) -> object:
        value = self._find(key, default)
        if value is default:
            return default
        return tuple(_float(key, v) for v in _per_layer(key, value, n))

    @overload
    def get_bools(self, key: str, n: int) -> tuple[bool, ...]: ...
    @overload
    def get_bools(self, key: str, n: int, default: T) -> tuple[bool, ...] | T: ...
    def get_bools(self, key: str, n: int, default: object = _REQUIRED) -> object:
        value = self._find(key, default)
        if value is default:
            return default
        values = _per_layer(key, value, n)
        if not all(isinstance(v, bool) for v in values):
            raise _wrong(key, value, "bools")
        return tuple(values)

    def get_array(self, key: str, kind: type[T]) -> T | None:
        """A whole array: `kind` is np.ndarray or StringArray. None where the key is missing."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, kind):
            raise _wrong(key, value, "an array of strings" if kind is StringArray else "an array of numbers")
        return value

    def _find(self, key: str, default: object) -> object:
        value = self.metadata.get(key, default)
        if value is _REQUIRED:
            raise ModelError(f"the model file has no {key}")
        return value


def _int(key: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(key, value, "an integer")
    if not low <= value <= high:
        raise ModelError(f"{key} is {value}, outside of {low} to {high}")
    return value


def _float(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(key, value, "a number")
    if not np.isfinite(value):
        raise ModelError(f"{key} is {value}")
    return float(value)


def _per_layer(key: str, value: object, n: int) -> list[object]:
    if not isinstance(value, np.ndarray):
        return [value] * n
    if len(value) != n:
        raise ModelError(f"{key} has {len(value)} elements, expected {n}")
    return list(value.tolist())


def _wrong(key: str, value: object, expected: str) -> ModelError:
    if isinstance(value, StringArray):
        found = f"an array of {len(value)} strings"
    elif isinstance(value, np.ndarray):
        found = f"an array of {len(value)} {value.dtype}"
    else:
        found = f"{type(value).__name__} {value!r:.60}"
    return ModelError(f"{key} should be {expected}, but is {found}")
