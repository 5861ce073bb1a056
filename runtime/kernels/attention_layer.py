"""The descriptor of an attention layer: what the ops that store and attend need to know, as int64 words.

Its address is those ops' only argument. Floats are carried as their 32 bits.
"""

import numpy as np
import numpy.typing as npt

(
    A_X,  # f32 rows q [heads][Dk], k [kv heads][Dk], v [kv heads][Dv]
    A_LDX,  # bytes per row of it
    A_OUT,  # f32 rows [heads][Dv]
    A_LDO,
    A_BASE,  # offset of the layer in a tile
    A_TILE,  # bytes of a tile (all layers of the group)
    A_GROUP,  # index of the cache group
    A_HEADS,
    A_KV_HEADS,
    A_DK,
    A_DV,
    A_MASK,  # one of the masks below
    A_WINDOW,  # its size in positions, 0 for all
    A_SCALE,  # f32 factor of q . k
    A_SOFTCAP,  # f32, 0 for none
    A_SINKS,  # f32 [heads] of logits that take weight and give no value, 0 for none
    A_PARTIALS,  # scratch of split runs, see attention.partial_bytes
    A_MAX_PARTS,  # partitions a sequence can have
    A_ROPE,  # the step's rope table, 0 for none
    A_LD_ROPE,
    A_N_ROT,
    A_PAIRING,
    A_ROTATE,  # bit 0: Hadamard-rotate q and k, bit 1: v and the output
    A_K_BYTES,  # bytes of the 16 keys of a head in a tile
    A_V_BYTES,
    A_PUT_KEY,  # addresses of the cache types' functions, see kvtypes
    A_PUT_VALUE,
    A_GET_KEYS,
    A_GET_VALUES,
    A_BIAS,  # f32 [heads][2 * span], added to scores: entry span + key - query of a head; 0 for none
    A_SPAN,
    A_SHARED,  # whether another layer stores the keys and values: rows are q alone
) = range(32)
A_WORDS = 32

CAUSAL = 0  # keys up to the query; with a window, the last `window` of them
CHUNKED = 1  # keys up to the query, from the start of its chunk of `window` positions
SYMMETRIC = 2  # keys of the whole run; with a window, at most window / 2 away

ROTATE_K, ROTATE_V = 1, 2


def descriptor(array: npt.NDArray[np.int64], words: dict[int, int]) -> npt.NDArray[np.int64]:
    """Write `words` into `array` [A_WORDS]."""
    for index, value in words.items():
        array[index] = value
    return array
