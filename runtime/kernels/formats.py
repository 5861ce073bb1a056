"""The weight types that kernels exist for, by GGML name."""

from dataclasses import dataclass
from types import ModuleType

from runtime.kernels.quantise import block_size
from runtime.kernels.quants import (
    bf16,
    f16,
    f32,
    iq4_nl,
    iq4_xs,
    mxfp4,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
)
from runtime.kernels.simd import LANES


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


def _format(name: str, module: ModuleType) -> Format:
    return Format(
        name,
        module.BLOCK,
        module.BLOCK_BYTES,
        block_size(module.ACTIVATIONS),
        module.PANEL_BLOCK,
        module.ACTIVATIONS,
        module,
    )


FORMATS: dict[str, Format] = {
    name: _format(name, module)
    for name, module in {
        "F32": f32,
        "F16": f16,
        "BF16": bf16,
        "Q4_0": q4_0,
        "Q4_1": q4_1,
        "Q5_0": q5_0,
        "Q5_1": q5_1,
        "Q8_0": q8_0,
        "Q2_K": q2_k,
        "Q3_K": q3_k,
        "Q4_K": q4_k,
        "Q5_K": q5_k,
        "Q6_K": q6_k,
        "IQ4_NL": iq4_nl,
        "IQ4_XS": iq4_xs,
        "MXFP4": mxfp4,
    }.items()
}
