"""Activations are rounded by one rule, row by row, whatever tile a row lands in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels import quantise as q
from tests.runtime.kernels.harness import quantised

KINDS = {
    "A32_FSUM": (q.A32_FSUM, 32, 32, 0),
    "A32_ISUM8": (q.A32_ISUM8, 32, 32, 8),
    "A32_ISUM16": (q.A32_ISUM16, 32, 32, 16),
    "A32_ISUM128": (q.A32_ISUM128, 32, 32, 128),
    "A32_ISUM64_16": (q.A32_ISUM64_16, 32, 16, 64),
    "A256_FSUM": (q.A256_FSUM, 256, 32, 0),
    "A256_FSUM_16": (q.A256_FSUM_16, 256, 16, 0),
    "A256_ISUM4": (q.A256_ISUM4, 256, 16, 4),
    "A256_ISUM32": (q.A256_ISUM32, 256, 16, 32),
    "A256_ISUM128": (q.A256_ISUM128, 256, 32, 128),
}


def reference(x: np.ndarray, block: int, group: int, zero: int) -> bytes:
    """The record of one row in a tile of one column."""
    out = b""
    for part in x.reshape(-1, block):
        d = np.abs(part).max() * np.float32(1 / 127)
        inverse = np.float32(1) / d if d > np.float32(1.2e-38) else np.float32(0)
        codes = np.rint(part * inverse).astype(np.int8)
        sums = codes.reshape(-1, group).sum(1, dtype=np.int32)
        out += codes.tobytes() + np.float32(d).tobytes()
        out += (np.int32(-zero) * sums).tobytes() if zero else (d * sums.astype(np.float32)).tobytes()
    return out


def columns_of(tiles: np.ndarray, kind: int, m: int, k: int) -> list[bytes]:
    """Each column's record, taken out of the tiles of m columns."""
    block, size = q.block_size(kind), q.block_bytes(kind)
    columns = [b""] * m
    first = 0
    while first < m:
        nc = next(w for w in q.WIDTHS if w <= m - first)
        tile = tiles[first * q.act_bytes(kind, k) :][: nc * q.act_bytes(kind, k)].reshape(-1, size * nc)
        for record in tile:
            codes = record[: block * nc].reshape(block // 32, nc, 32)
            rest = record[block * nc :].reshape(-1, nc, 4)
            for c in range(nc):
                columns[first + c] += codes[:, c].tobytes() + rest[:, c].tobytes()
        first += nc
    return columns


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_each_column_of_any_tile_follows_the_rule(name: str, data: st.DataObject) -> None:
    kind, block, group, zero = KINDS[name]
    m, k = data.draw(st.integers(1, 21)), block * data.draw(st.integers(1, 3))
    seed, pieces = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(1, 5))
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((m, k)) * 10.0 ** rng.integers(-6, 6, (m, 1))).astype(np.float32)
    columns = columns_of(quantised(x, kind, pieces), kind, m, k)
    assert columns == [reference(row, block, group, zero) for row in x]


def test_zero_and_vanishing_rows_give_zero_codes() -> None:
    x = np.zeros((2, 32), np.float32)
    x[1] = 1e-42
    tiles = quantised(x, q.A32_ISUM128)
    assert not tiles[:32].any() and not tiles[40:72].any()


@pytest.mark.parametrize("k", [16, 20, 64, 99])
def test_float_activations_are_copied_and_padded_with_zeros(k: int) -> None:
    x = np.random.default_rng(k).standard_normal((11, k)).astype(np.float32)
    padded = -(-k // 16) * 16
    got = quantised(x, q.A_F32)[: 11 * 4 * padded].view(np.float32)
    first = 0
    while first < 11:
        nc = next(w for w in q.WIDTHS if w <= 11 - first)
        tile = got[first * padded :][: nc * padded].reshape(-1, nc, 16).transpose(1, 0, 2).reshape(nc, padded)
        assert np.array_equal(tile[:, :k], x[first : first + nc]) and not tile[:, k:].any()
        first += nc
