"""Reading safetensors: eight bytes of header length, a JSON header, then raw little-endian tensors."""

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tools.errors import FetchError

_DTYPES = {"F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8"}
_MAX_HEADER = 1 << 24
_MAX_DIMS = 8


def read_safetensors(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """All tensors of a file, as views of its mapping. Errors: FetchError for a damaged file, OSError."""
    data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    length = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or length > min(_MAX_HEADER, len(data) - 8):
        raise FetchError(f"{path.name}: not a safetensors file")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise FetchError(f"{path.name}: damaged: its header is not a JSON object")
    body = data[8 + length :]
    return {
        name: _view(f"{path.name}: tensor {name[:80]!r}", entry, body)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _view(what: str, entry: object, body: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
    match entry:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
            dtype = _DTYPES.get(kind)
            if dtype is None:
                raise FetchError(f"{what} has type {kind[:20]!r}, which is not supported")
            if len(shape) <= _MAX_DIMS and all(type(n) is int and n >= 0 for n in shape):
                n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
                if 0 <= begin <= end <= len(body) and end - begin == n_bytes:
                    return body[begin:end].view(dtype).reshape(shape)
    raise FetchError(f"{what} has a damaged entry, or lies beyond the end of the file")
