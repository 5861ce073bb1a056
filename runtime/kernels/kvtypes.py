"""Element types of the key/value cache: how 16 of them become an f32 vector and back.

A tile holds 16 positions of one kv head: keys ``[Dk][16]``, then values ``[16][Dv]``, so that 16 keys are scored
with Dk broadcast-fma and no horizontal sum.
"""

from dataclasses import dataclass
from typing import Any

from runtime.kernels import simd


@dataclass(frozen=True, slots=True)
class KVType:
    """`load(address) -> f32 x 16`, `store(address, f32 x 16)`, `store1(address, float32)`; `size` bytes per element."""

    name: str
    size: int
    load: Any
    store: Any
    store1: Any


KV_TYPES = {
    "f16": KVType("f16", 2, simd.load_f16, simd.store_f16, simd.st_f16),
    "f32": KVType("f32", 4, simd.load_f32, simd.store, simd.st_f32),
}
