"""Attention over rows that all heads share, as parts of a plan: latents, windows, compressed keys."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import UnsupportedModel
from runtime.kernels import latent as la
from runtime.kernels import latent_rows as lr
from runtime.kernels.job import f32_bits
from runtime.kernels.kvtypes import KV_TYPES, KVType
from runtime.kernels.simd import LANES
from runtime.plan.builder import Plan
from runtime.plan.tail import Ring
from runtime.plan.values import LatentGroup, Rows


@dataclass(frozen=True, slots=True)
class Keys:
    """Rows of one layer: the descriptor of `latent_rows` that says where they are and which a query sees."""

    words: npt.NDArray[np.int64]

    @property
    def address(self) -> int:
        return int(self.words.ctypes.data)

    @property
    def d(self) -> int:
        return int(self.words[lr.R_D])


def paged_keys(p: Plan, group: LatentGroup, d: int) -> Keys:
    """One more layer's rows of d values in a cache group; a query sees all that its position completes.

    Errors: UnsupportedModel for rows that the cache type cannot hold.
    """
    _check(p, group.kv, d)
    words = p.arena.array((lr.R_WORDS,), np.int64, f"rows of {group.name}")
    group.add_layer(words, d)
    return _with_functions(p, words, group.kv)


def ring_keys(p: Plan, ring: Ring, d: int, window: int, kind: str = "f32") -> Keys:
    """One more layer's rows of d values in a ring; a query sees the last `window` of them, with its own."""
    kv = KV_TYPES[kind]
    _check(p, kv, d)
    words = p.arena.array((lr.R_WORDS,), np.int64, f"rows of {ring.name}")
    row_bytes = kv.row_bytes(d)
    words[[lr.R_D, lr.R_RATIO, lr.R_WINDOW, lr.R_ROW_BYTES]] = d, 1, window, row_bytes
    words[lr.R_OFFSET] = ring.add(f"rows-{kind}-", row_bytes)
    ring.patch(words, lr.R_RING, lr.R_STRIDE, lr.R_CAPACITY)
    return _with_functions(p, words, kv)


def store(p: Plan, keys: Keys, x: Rows) -> None:
    """x becomes the rows of its positions; not for compressed rows, which their own op writes."""
    assert x.width == keys.d
    p.op(lr.store_latents, keys.address, x.address, x.ld)


def attend(
    p: Plan, q: Rows, heads: int, d_v: int, keys: Sequence[Keys], *, scale: float, sinks: str = "",
    out: str = "latent attention",
) -> Rows:  # fmt: skip
    """One softmax per head over one or two sources of keys, whose first d_v values are the values.

    `q` has rows ``[heads][d]``, the result rows ``[heads][d_v]``. `sinks` names a tensor of a logit per head
    that takes weight and gives no value. Errors: UnsupportedModel for rows that are too long.
    """
    p.families.add("latent-attention")
    d = keys[0].d
    units = la.units_of_tile(d, d_v)
    if units < 1 or d % LANES or d_v % LANES:
        raise UnsupportedModel(
            f"{p.file.path.name}: keys of {d} values, {d_v} of them summed, are not supported"
        )
    assert q.width == heads * d and d_v <= d and len(keys) <= 2 and all(k.d == d for k in keys)
    max_parts = sum(_max_parts(p, k) for k in keys)
    records = la.records_bytes(p.options.max_runs, heads, d_v, max_parts)
    y = p.buffer(out, heads * d_v)
    words = p.arena.array((la.L_WORDS,), np.int64, "latent attention")
    for index, value in {
        la.L_Q: q.address, la.L_LDQ: q.ld, la.L_OUT: y.address, la.L_LDO: y.ld, la.L_HEADS: heads,
        la.L_D: d, la.L_DV: d_v, la.L_SCALE: f32_bits(scale),
        la.L_SINKS: p.weights.vector(f"{sinks}.weight", widths=[heads]) if sinks else 0,
        la.L_FIRST: keys[0].address, la.L_SECOND: keys[1].address if len(keys) > 1 else 0,
        la.L_RECORDS: p.area("latent records", records), la.L_MAX_PARTS: max_parts, la.L_UNITS: units,
    }.items():  # fmt: skip
        words[index] = value
    p.op(la.latent_attention, words.ctypes.data)
    p.op(la.latent_combine, words.ctypes.data)
    return y


def _check(p: Plan, kv: KVType, d: int) -> None:
    if d % max(LANES, kv.block):
        raise UnsupportedModel(f"{p.file.path.name}: cache type {kv.name} cannot hold rows of {d} values")


def _with_functions(p: Plan, words: npt.NDArray[np.int64], kv: KVType) -> Keys:
    p.functions += [(words, lr.R_PUT, kv.put_value), (words, lr.R_GET, kv.get_values)]
    return Keys(words)


def _max_parts(p: Plan, keys: Keys) -> int:
    """Partitions of one source that a query can have."""
    rows = p.options.n_ctx // int(keys.words[lr.R_RATIO])
    window, top_k = int(keys.words[lr.R_WINDOW]), int(keys.words[lr.R_TOP_K])
    if window:
        rows = min(rows, window + la.PARTITION)
    if top_k:
        rows = min(rows, top_k)
    return -(-rows // la.PARTITION) + 1
