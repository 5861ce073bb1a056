"""Codebooks of the IQ1, IQ2 and IQ3 types, as the gguf package holds them: int8 values, entry after entry."""

import numpy as np
import numpy.typing as npt
from gguf import quants


def _grid(owner: str) -> npt.NDArray[np.int8]:
    codec = getattr(quants, owner)
    codec.init_grid()
    return np.ascontiguousarray(codec.grid.reshape(-1), np.int8)


IQ1_S, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S = map(
    _grid, ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
)
