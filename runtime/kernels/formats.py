"""The weight types that kernels exist for, by GGML name.

A type's module is imported, and its kernels declared, when the type is first asked for: a model uses a few.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from runtime.kernels.quantise import block_size
from runtime.kernels.simd import LANES
from runtime.weight_types import NAMES

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Format:
    """Sizes of one weight type, in a GGUF file and as panels of 16 rows.

    `block` weights of a row take `block_bytes` in the file; `panel_k` k of a panel take `panel_block` bytes.
    `act_kind` is how activations are quantised for it. `module` holds its entry points.
    """

    name: str
    block: int
    block_bytes: int
    panel_k: int
    panel_block: int
    act_kind: int
    module: ModuleType

    def row_bytes(self, k: int) -> int:
        """Bytes of a row of k weights in the file. ValueError where k is not a multiple of the block."""
        if k % self.block:
            raise ValueError(f"{self.name} rows are multiples of {self.block}, not {k}")
        return k // self.block * self.block_bytes

    def panel_bytes(self, k: int) -> int:
        """Bytes of 16 rows of k weights as a panel."""
        return -(-k // self.panel_k) * self.panel_block

    def packed_bytes(self, n_rows: int, k: int) -> int:
        """Bytes of n_rows rows as panels, the last one filled up."""
        return -(-n_rows // LANES) * self.panel_bytes(k)


class ByType(Mapping[str, T]):
    """A table by type name whose entries are made when they are first read."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self._make = cache(make)

    def __getitem__(self, name: str) -> T:
        if name not in NAMES:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


def _format(name: str) -> Format:
    module = import_module(f"runtime.kernels.quants.{name.lower()}")
    return Format(
        name,
        module.BLOCK,
        module.BLOCK_BYTES,
        block_size(module.ACTIVATIONS),
        module.PANEL_BLOCK,
        module.ACTIVATIONS,
        module,
    )


FORMATS: Mapping[str, Format] = ByType(_format)
