"""Weights as f32: whole rows for tools and tests, embedding rows for the tape."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from runtime.kernels.formats import FORMATS, ByType
from runtime.kernels.tape import Op

#: op by GGML type name: ``out[j] = row ids[j] of the table * scale``; parameters on the tape:
#:   0  table: rows as in the file      4  out, f32
#:   1  bytes per row                   5  bytes per row of out
#:   2  k                               6  scale, the bits of an f32
#:   3  ids, int32                      7  job variable that holds the number of ids
EMBED: Mapping[str, Op] = ByType(lambda name: FORMATS[name].module.embed)


def dequantise_rows(type_name: str, raw: npt.NDArray[np.uint8], k: int) -> npt.NDArray[np.float32]:
    """Rows of GGUF bytes, uint8 [..., row bytes], as float32 [..., k]: exactly what ggml decodes.

    KeyError for a type without kernels, ValueError where k or the row's bytes do not fit the type.
    """
    fmt = FORMATS[type_name]
    row_bytes = fmt.row_bytes(k)
    if raw.dtype != np.uint8 or raw.shape[-1] != row_bytes:
        raise ValueError(f"{type_name} rows of {k} are {row_bytes} bytes, not {raw.dtype} {raw.shape[-1]}")
    source = np.ascontiguousarray(raw)
    out = np.empty((*raw.shape[:-1], k), np.float32)
    fmt.module.decode(source.ctypes.data, source.size // row_bytes, k, out.ctypes.data)
    return out
