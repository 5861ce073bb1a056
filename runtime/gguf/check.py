"""``--check-tensors``: a scan for weights that are not finite numbers."""

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelError
from runtime.gguf.parse import TensorInfo
from runtime.gguf.types import GGMLType

_CHUNK_BYTES = 1 << 24
_FLOATS = {GGMLType.F16: "<f2", GGMLType.F32: "<f4", GGMLType.F64: "<f8"}
_F16_SCALES = {
    (0,): "Q4_0 Q5_0 Q8_0 IQ4_NL Q1_0 Q2_0 Q6_0 IQ4_XS IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S "
    "IQ2_K IQ3_K IQ4_K IQ5_K IQ6_K",
    (0, 2): "Q4_1 Q5_1 Q4_K Q5_K",
    (80, 82): "Q2_K",
    (108,): "Q3_K",
    (208,): "Q6_K",
    (52,): "TQ1_0",
    (64,): "TQ2_0",
}
_SCALE_OFFSETS = {GGMLType[name]: offsets for offsets, names in _F16_SCALES.items() for name in names.split()}


def check_values(info: TensorInfo, raw: npt.NDArray[np.uint8]) -> None:
    """Raise ModelError if a weight of the tensor, or the scale of one of its blocks, is NaN or infinite.

    `raw` uint8 [n_bytes]. Types whose scales are not float16 at fixed places of a block are not looked into.
    """
    unit = info.type.block_bytes
    for start in range(0, len(raw), chunk := _CHUNK_BYTES // unit * unit):
        if not _finite(info.type, raw[start : start + chunk]):
            raise ModelError(f"tensor {info.name} holds values that are not finite numbers")


def _finite(kind: GGMLType, raw: npt.NDArray[np.uint8]) -> bool:
    if (dtype := _FLOATS.get(kind)) is not None:
        return bool(np.isfinite(raw.view(dtype)).all())
    if kind is GGMLType.BF16:
        return bool(((raw.view("<u2") & 0x7F80) != 0x7F80).all())
    blocks = raw.reshape(-1, kind.block_bytes) if kind in _SCALE_OFFSETS else None
    return blocks is None or all(
        np.isfinite(np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")).all()
        for at in _SCALE_OFFSETS[kind]
    )
