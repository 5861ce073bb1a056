"""What a model file handles while it writes a plan: rows, sources of matmuls, heads, rotations, groups."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from runtime.kernels import attention_layer as al
from runtime.kernels import job
from runtime.kernels import latent_rows as lr
from runtime.kernels.kvstore import clear_rows
from runtime.kernels.kvtypes import KVType
from runtime.kernels.tape import Op
from runtime.memory.layout import TILE, GroupLayout

ROTATED = {0: "", al.ROTATE_K: "+k", al.ROTATE_V: "+v", al.ROTATE_K | al.ROTATE_V: "+kv"}
"""How layouts name the Hadamard rotations of a layer."""


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

    `keep(rows)`, where there is one, writes them as f32 instead. `narrow`: k need not be a multiple of 16,
    where weights are floats.
    """

    k: int
    count: int
    emit: Callable[[int, int], None]
    keep: Callable[[Rows], None] | None = None
    narrow: bool = False


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
    """Layers that share block tables and a mask. Layers are added as the plan meets them.

    `readers` have no keys and values of their own and attend to those of one of the `layers`. `cache` are the
    types of keys and values, `rotations` says of each layer which of both are Hadamard-rotated.
    """

    name: str
    index: int
    mask: int
    window: int
    cache: str
    tile_bytes: int = 0
    shapes: list[tuple[int, int, int]] = field(default_factory=list)
    rotations: list[int] = field(default_factory=list)
    layers: list[npt.NDArray[np.int64]] = field(default_factory=list)
    readers: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add_layer(
        self, layer: npt.NDArray[np.int64], kv_heads: int, dk: int, dv: int, tile_bytes: int
    ) -> None:
        self.layers.append(layer)
        self.shapes.append((kv_heads, dk, dv))
        self.rotations.append(int(layer[al.A_ROTATE]))
        self.tile_bytes += tile_bytes

    @property
    def clear(self) -> Op:
        """The op that makes rows of a block those of zeros, layer by layer."""
        return clear_rows

    @property
    def row_floats(self) -> int:
        """The most f32 that a position of a layer has at once."""
        return max((n * max(dk, dv) for n, dk, dv in self.shapes), default=0)

    def finish(self) -> None:
        """Tell the layers what only all of them together decide."""
        for layer in (*self.layers, *self.readers):
            layer[al.A_TILE] = self.tile_bytes

    def layout(self) -> GroupLayout:
        layers = zip(self.shapes, self.rotations, strict=True)
        runs = (
            f"{len(list(g))}x{s[0]}h{s[1]}k{s[2]}v{ROTATED[rotation]}" for (s, rotation), g in groupby(layers)
        )
        layout_id = f"gqa-tile16-v1:{self.cache}:{'+'.join(runs)}:m{self.mask}w{self.window}"
        chunked = self.mask == al.CHUNKED
        return GroupLayout(self.name, layout_id, self.tile_bytes, self.window, chunked=chunked)


@dataclass(slots=True)
class LatentGroup:
    """Row-major rows of some layers, each row for `ratio` positions; see `runtime.kernels.latent_rows`.

    `tile_rows` rows of a layer lie together. `layers` are the sources' descriptors.
    """

    name: str
    index: int
    kv: KVType
    ratio: int = 1
    tile_rows: int = TILE
    tile_bytes: int = 0
    widths: list[int] = field(default_factory=list)
    layers: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add_layer(self, source: npt.NDArray[np.int64], d: int) -> None:
        """Give one more layer's rows of d values a place in the group's tiles."""
        row_bytes = self.kv.row_bytes(d)
        source[[lr.R_D, lr.R_RATIO, lr.R_ROW_BYTES, lr.R_OFFSET]] = d, self.ratio, row_bytes, self.tile_bytes
        source[[lr.R_GROUP, lr.R_TILE_ROWS]] = self.index, self.tile_rows
        self.layers.append(source)
        self.widths.append(d)
        self.tile_bytes += self.tile_rows * row_bytes

    @property
    def clear(self) -> Op:
        return lr.clear_latents

    @property
    def row_floats(self) -> int:
        return max(self.widths, default=0)

    def finish(self) -> None:
        for layer in self.layers:
            layer[lr.R_TILE_BYTES] = self.tile_bytes

    def layout(self) -> GroupLayout:
        runs = (f"{len(list(g))}x{d}" for d, g in groupby(self.widths))
        layout_id = f"latent-rows-v1:{self.kv.name}:{'+'.join(runs)}:r{self.ratio}t{self.tile_rows}"
        return GroupLayout(self.name, layout_id, self.tile_bytes, unit=self.ratio * self.tile_rows)
