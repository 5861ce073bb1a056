"""Layers of attention over paged keys and values of their own, as a plan writes them."""

import numpy as np

from runtime.errors import ModelError, UnsupportedModel
from runtime.kernels import attention as attn
from runtime.kernels import attention_layer as al
from runtime.kernels.job import f32_bits
from runtime.kernels.kvstore import rotate_and_store, rotate_back
from runtime.kernels.kvtypes import KV_TYPES, KVType
from runtime.kernels.simd import LANES
from runtime.memory.layout import BLOCK, TILE
from runtime.plan.builder import Plan
from runtime.plan.values import Bias, CacheGroup, Heads, Rope, Rows

ROTATED_UNIT = 64
"""Heads of multiples of this are rotated by default, which is llama.cpp's condition."""


def attend_heads(
    p: Plan, qkv: Rows, group: CacheGroup, heads: Heads, rope: Rope | None, *, scale: float = 0.0,
    softcap: float = 0.0, sinks: str = "", bias: Bias | None = None, shared: bool = False,
) -> Rows:  # fmt: skip
    """Rotate and store this layer's keys and values, then attend; `qkv` rows are q, k, v heads in a row.

    `scale` is that of ``q . k``, by default ``d_k ** -0.5``. `sinks` names a tensor of one logit per
    head, `bias` is added to scores. A `shared` layer attends to what the group's latest layer with keys
    and values stored, and its rows are q alone. Returns rows of ``n * d_v``.
    """
    key_type, value_type = KV_TYPES[p.options.key_type], KV_TYPES[p.options.value_type]
    _check_heads(p, heads, key_type, value_type)
    if shared and group.shapes[-1:] != [(heads.n_kv, heads.d_k, heads.d_v)]:
        raise ModelError(f"{p.file.path.name}: a layer shares keys and values that do not fit its queries")
    out = p.buffer("attention", heads.n * heads.d_v)
    k_bytes, v_bytes = TILE * key_type.row_bytes(heads.d_k), TILE * value_type.row_bytes(heads.d_v)
    max_parts = -(-p.options.n_ctx // BLOCK)
    rotate = al.ROTATE_K if _rotated(p.options.rotate_k, key_type, heads.d_k) else 0
    rotate |= al.ROTATE_V if _rotated(p.options.rotate_v, value_type, heads.d_v) else 0
    layer = al.descriptor(p.arena.array((al.A_WORDS,), np.int64, "attention layer"), {
        al.A_X: qkv.address, al.A_LDX: qkv.ld, al.A_OUT: out.address, al.A_LDO: out.ld,
        al.A_BASE: int(group.layers[-1][al.A_BASE]) if shared else group.tile_bytes,
        al.A_GROUP: group.index,
        al.A_HEADS: heads.n, al.A_KV_HEADS: heads.n_kv, al.A_DK: heads.d_k, al.A_DV: heads.d_v,
        al.A_MASK: group.mask, al.A_WINDOW: group.window,
        al.A_SCALE: f32_bits(scale or heads.d_k**-0.5), al.A_SOFTCAP: f32_bits(softcap),
        al.A_SINKS: p.weights.vector(f"{sinks}.weight", widths=[heads.n]) if sinks else 0,
        al.A_PARTIALS: _partials(p, heads, max_parts), al.A_MAX_PARTS: max_parts,
        al.A_ROPE: rope.address if rope else 0, al.A_LD_ROPE: rope.ld if rope else 0,
        al.A_N_ROT: rope.n_rot if rope else 0, al.A_PAIRING: rope.pairing if rope else 0,
        al.A_ROTATE: rotate, al.A_K_BYTES: k_bytes, al.A_V_BYTES: v_bytes,
        al.A_BIAS: bias.address if bias else 0, al.A_SPAN: bias.span if bias else 0,
        al.A_SHARED: int(shared),
    })  # fmt: skip
    if shared:
        group.readers.append(layer)
    else:
        group.add_layer(layer, heads.n_kv, heads.d_k, heads.d_v, heads.n_kv * (k_bytes + v_bytes))
    p.functions += [
        (layer, al.A_PUT_KEY, key_type.put_key), (layer, al.A_PUT_VALUE, value_type.put_value),
        (layer, al.A_GET_KEYS, key_type.get_keys), (layer, al.A_GET_VALUES, value_type.get_values),
    ]  # fmt: skip
    at = layer.ctypes.data
    p.op(rotate_and_store, at)
    p.op(attn.attention(key_type.name, value_type.name), at)
    p.op(attn.attention_combine, at)
    if rotate & al.ROTATE_V:
        p.op(rotate_back, at)
    return out


def _rotated(wanted: bool | None, kind: KVType, d: int) -> bool:
    """Whether heads of d values are rotated: by default as in llama.cpp, if the type is made of blocks."""
    return wanted if wanted is not None else kind.block > 1 and d % ROTATED_UNIT == 0


def _check_heads(p: Plan, heads: Heads, keys: KVType, values: KVType) -> None:
    where, dk, dv = p.file.path.name, heads.d_k, heads.d_v
    if dk % LANES or dv % LANES or heads.n % heads.n_kv:
        raise UnsupportedModel(
            f"{where}: heads of {dk} and {dv} values, {heads.n} over {heads.n_kv}, are not supported"
        )
    if dk % keys.block or dv % values.block:
        raise UnsupportedModel(
            f"{where}: cache types {keys.name}/{values.name} need heads of whole 32s, not {dk}/{dv}"
        )


def _partials(p: Plan, heads: Heads, max_parts: int) -> int:
    group = heads.n // heads.n_kv
    return p.area("partials", attn.partial_bytes(p.options.max_runs, heads.n_kv, group, heads.d_v, max_parts))
