"""Cache types: how keys and values become bytes of a tile, and f32 again.

A tile holds 16 positions of one kv head: the keys, then the values.

keys     position in the lane: ``[Dk][16]`` elements, quantised ones per 32 dims as `kvblocks` says. So 16
         keys are scored with Dk broadcast-fma and no horizontal sum.
values   ``[16][Dv]``: a row per position.

Either way a position costs what a GGUF row of that type costs. The four functions of a type are native and
reached by address, so that key and value types combine freely; plain types used for both also have attention
kernels of their own, which load them without a detour.

put_key(row, keys, lane, d, _)      f32 [d] -> lane of a tile's keys
put_value(row, at, d, _, _)         f32 [d] -> a row of a tile's values
get_keys(keys, out, d, _, _)        -> f32 [d][16]
get_values(values, out, d, _, _)    -> f32 [16][d]
"""

from dataclasses import dataclass
from typing import Any

import numba as nb

from runtime.kernels import kvblocks as kb
from runtime.kernels.simd import (
    LANES,
    VB,
    inline,
    ld_f32,
    load_bf16,
    load_f16,
    load_f32,
    st_bf16,
    st_f16,
    st_f32,
    store,
    store_bf16,
    store_f16,
)
from runtime.kernels.tape import Op


@dataclass(frozen=True, slots=True)
class KVType:
    """A cache type by llama.cpp's name: `block` elements take `block_bytes`.

    `load(address) -> f32 x 16` exists for the types with direct attention kernels.
    """

    name: str
    block: int
    block_bytes: int
    put_key: Op
    put_value: Op
    get_keys: Op
    get_values: Op
    load: Any = None

    def row_bytes(self, d: int) -> int:
        """Bytes of one position's `d` keys or values."""
        return d // self.block * self.block_bytes


@nb.njit(**inline)
def put_key_plain(put1, size, row, keys, lane, d):
    for i in range(d):
        put1(keys + (i * LANES + lane) * size, ld_f32(row + 4 * i))


@nb.njit(**inline)
def put_value_plain(put, size, row, at, d):
    for i in range(0, d, LANES):
        put(at + i * size, load_f32(row + 4 * i))


@nb.njit(**inline)
def get_plain(get, size, src, out, d):
    for i in range(d):
        store(out + i * VB, get(src + i * LANES * size))


@Op
def put_key_f32(row, keys, lane, d, _):
    put_key_plain(st_f32, 4, row, keys, lane, d)


@Op
def put_value_f32(row, at, d, _, __):
    put_value_plain(store, 4, row, at, d)


@Op
def get_f32(src, out, d, _, __):
    get_plain(load_f32, 4, src, out, d)


@Op
def put_key_f16(row, keys, lane, d, _):
    put_key_plain(st_f16, 2, row, keys, lane, d)


@Op
def put_value_f16(row, at, d, _, __):
    put_value_plain(store_f16, 2, row, at, d)


@Op
def get_f16(src, out, d, _, __):
    get_plain(load_f16, 2, src, out, d)


@Op
def put_key_bf16(row, keys, lane, d, _):
    put_key_plain(st_bf16, 2, row, keys, lane, d)


@Op
def put_value_bf16(row, at, d, _, __):
    put_value_plain(store_bf16, 2, row, at, d)


@Op
def get_bf16(src, out, d, _, __):
    get_plain(load_bf16, 2, src, out, d)


key_q8_0, value_q8_0 = kb.make_block(kb.encode_q8_0, 32, False, False)
key_q4_0, value_q4_0 = kb.make_block(kb.make_encode(16, False), 16, False, False)
key_q4_1, value_q4_1 = kb.make_block(kb.make_encode(16, True), 16, True, False)
key_q5_0, value_q5_0 = kb.make_block(kb.make_encode(32, False), 16, False, True)
key_q5_1, value_q5_1 = kb.make_block(kb.make_encode(32, True), 16, True, True)
key_iq4_nl, value_iq4_nl = kb.make_block(kb.encode_iq4_nl, 16, False, False)
keys_q4_0, values_q4_0 = kb.make_get(16, False)
keys_q4_1, values_q4_1 = kb.make_get(16, True)
keys_q5_0, values_q5_0 = kb.make_get(32, False)
keys_q5_1, values_q5_1 = kb.make_get(32, True)


@Op
def put_key_q8_0(row, keys, lane, d, _):
    key_q8_0(row, keys, lane, d)


@Op
def put_value_q8_0(row, at, d, _, __):
    value_q8_0(row, at, d)


@Op
def get_keys_q8_0(keys, out, d, _, __):
    kb.get_keys_q8_0(keys, out, d)


@Op
def get_values_q8_0(values, out, d, _, __):
    kb.get_values_q8_0(values, out, d)


@Op
def put_key_q4_0(row, keys, lane, d, _):
    key_q4_0(row, keys, lane, d)


@Op
def put_value_q4_0(row, at, d, _, __):
    value_q4_0(row, at, d)


@Op
def get_keys_q4_0(keys, out, d, _, __):
    keys_q4_0(keys, out, d)


@Op
def get_values_q4_0(values, out, d, _, __):
    values_q4_0(values, out, d)


@Op
def put_key_q4_1(row, keys, lane, d, _):
    key_q4_1(row, keys, lane, d)


@Op
def put_value_q4_1(row, at, d, _, __):
    value_q4_1(row, at, d)


@Op
def get_keys_q4_1(keys, out, d, _, __):
    keys_q4_1(keys, out, d)


@Op
def get_values_q4_1(values, out, d, _, __):
    values_q4_1(values, out, d)


@Op
def put_key_q5_0(row, keys, lane, d, _):
    key_q5_0(row, keys, lane, d)


@Op
def put_value_q5_0(row, at, d, _, __):
    value_q5_0(row, at, d)


@Op
def get_keys_q5_0(keys, out, d, _, __):
    keys_q5_0(keys, out, d)


@Op
def get_values_q5_0(values, out, d, _, __):
    values_q5_0(values, out, d)


@Op
def put_key_q5_1(row, keys, lane, d, _):
    key_q5_1(row, keys, lane, d)


@Op
def put_value_q5_1(row, at, d, _, __):
    value_q5_1(row, at, d)


@Op
def get_keys_q5_1(keys, out, d, _, __):
    keys_q5_1(keys, out, d)


@Op
def get_values_q5_1(values, out, d, _, __):
    values_q5_1(values, out, d)


@Op
def put_key_iq4_nl(row, keys, lane, d, _):
    key_iq4_nl(row, keys, lane, d)


@Op
def put_value_iq4_nl(row, at, d, _, __):
    value_iq4_nl(row, at, d)


@Op
def get_keys_iq4_nl(keys, out, d, _, __):
    kb.get_keys_iq4_nl(keys, out, d)


@Op
def get_values_iq4_nl(values, out, d, _, __):
    kb.get_values_iq4_nl(values, out, d)


KV_TYPES = {
    t.name: t
    for t in (
        KVType("f32", 1, 4, put_key_f32, put_value_f32, get_f32, get_f32, load_f32),
        KVType("f16", 1, 2, put_key_f16, put_value_f16, get_f16, get_f16, load_f16),
        KVType("bf16", 1, 2, put_key_bf16, put_value_bf16, get_bf16, get_bf16, load_bf16),
        KVType("q8_0", 32, 34, put_key_q8_0, put_value_q8_0, get_keys_q8_0, get_values_q8_0),
        KVType("q4_0", 32, 18, put_key_q4_0, put_value_q4_0, get_keys_q4_0, get_values_q4_0),
        KVType("q4_1", 32, 20, put_key_q4_1, put_value_q4_1, get_keys_q4_1, get_values_q4_1),
        KVType("q5_0", 32, 22, put_key_q5_0, put_value_q5_0, get_keys_q5_0, get_values_q5_0),
        KVType("q5_1", 32, 24, put_key_q5_1, put_value_q5_1, get_keys_q5_1, get_values_q5_1),
        KVType("iq4_nl", 32, 18, put_key_iq4_nl, put_value_iq4_nl, get_keys_iq4_nl, get_values_iq4_nl),
    )
}
