"""What a model file handles while it writes a plan: rows, sources of matmuls, heads, rotations, groups."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from runtime.kernels import job
from runtime.memory.layout import GroupLayout


@dataclass(frozen=True, slots=True)
class Rows:
    """f32 rows: `width` floats used of each `ld` bytes; `count` is the job variable of their number."""

    address: int
    ld: int
    width: int
    count: int = job.ROWS

    def columns(self, first: int, width: int) -> "Rows":
        return Rows(self.address + 4 * first, self.ld, width, self.count)


@dataclass(slots=True)
class Source:
    """Rows of `k` values that `emit(kind, dst)` quantises into activation tiles.

    `keep(rows)`, where there is one, writes them as f32 instead.
    """

    k: int
    count: int
    emit: Callable[[int, int], None]
    keep: Callable[[Rows], None] | None = None


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of attention: `n` of queries over `n_kv` of keys and values, of `d_k` and `d_v` values each."""

    n: int
    n_kv: int
    d_k: int
    d_v: int

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of q, k and v."""
        return self.n * self.d_k, self.n_kv * self.d_k, self.n_kv * self.d_v


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotation: its per-step table (`address`, `ld` bytes per row), rotated dims and pairing."""

    address: int
    ld: int
    n_rot: int
    pairing: int


@dataclass(frozen=True, slots=True)
class Bias:
    """What is added to attention scores by head and distance: f32 [heads][2 * span] at `address`.

    Entry ``span + key - query`` of a head's line is that of a key so many positions after the query.
    """

    address: int
    span: int


@dataclass(slots=True)
class CacheGroup:
    """Layers that share block tables and a mask. Layers are added as the plan meets them."""

    name: str
    index: int
    mask: int
    window: int
    cache: str
    tile_bytes: int = 0
    shapes: list[tuple[int, int, int]] = field(default_factory=list)
    layers: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add_layer(
        self, layer: npt.NDArray[np.int64], kv_heads: int, dk: int, dv: int, tile_bytes: int
    ) -> None:
        self.layers.append(layer)
        self.shapes.append((kv_heads, dk, dv))
        self.tile_bytes += tile_bytes

    def layout(self) -> GroupLayout:
        runs = (f"{len(list(g))}x{s[0]}h{s[1]}k{s[2]}v" for s, g in groupby(self.shapes))
        layout_id = f"gqa-tile16-v1:{self.cache}:{'+'.join(runs)}:m{self.mask}w{self.window}"
        return GroupLayout(self.name, layout_id, self.tile_bytes, self.window)
