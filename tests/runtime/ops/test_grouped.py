"""Products of groups of columns with matrices of their own, against numpy."""

import gguf
import numpy as np
import pytest

from runtime.kernels import grouped, job
from runtime.kernels.formats import FORMATS
from runtime.kernels.matmul import MATMUL
from runtime.kernels.pack import pack
from runtime.kernels.quantise import act_bytes
from runtime.kernels.unpacked import PACK, matmul_unpacked
from tests.runtime.ops.harness import Bench, bench


def product(b: Bench, raw: np.ndarray, type_name: str, x: np.ndarray, rows: int, gap: int, unpacked: bool):
    """out[:, g, :rows] = x[:, g, :k] . W[g]; raw [groups * rows, row bytes] as in a file, NaN in the gaps."""
    m, groups, width = x.shape
    k = width - gap
    fmt = FORMATS[type_name]
    source, dst = b.array(raw, np.uint8), b.array(x.reshape(m, -1))
    out = b.array(np.full((m, groups, rows + gap), np.nan))
    n_tiles = m * act_bytes(fmt.act_kind, k)
    tiles = b.arena.take(groups * n_tiles)
    words = b.array(np.zeros(grouped.G_WORDS), np.int64)
    weights, panel_bytes = source.ctypes.data, 16 * fmt.row_bytes(k)
    if not unpacked:
        weights, panel_bytes = b.arena.take(fmt.packed_bytes(groups * rows, k)), fmt.panel_bytes(k)
        pack(type_name, source.ctypes.data, groups * rows, k, weights)
    op = matmul_unpacked if unpacked else MATMUL[type_name]
    words[:] = [
        op.address, weights, groups, rows // 16 * panel_bytes, rows // 16, panel_bytes, tiles, n_tiles, k,
        out.ctypes.data, out.strides[0], out.strides[1], job.ROWS, MATMUL[type_name].address,
        PACK[type_name].address, rows, fmt.panel_bytes(k),
    ]  # fmt: skip
    b.rows(m)
    b.run(grouped.quant_groups, dst.ctypes.data, dst.strides[0], groups, 4 * width, k, tiles, n_tiles,
          fmt.act_kind, job.ROWS)  # fmt: skip
    b.run(grouped.matmul_groups, words.ctypes.data)
    return out


@pytest.mark.parametrize("unpacked", [False, True])
@pytest.mark.parametrize(("type_name", "m"), [("F32", 1), ("F32", 13), ("Q8_0", 5), ("F16", 9)])
def test_each_group_is_multiplied_with_its_own_matrix(type_name: str, m: int, unpacked: bool) -> None:
    groups, k, rows, gap = 5, 96, 144, 16
    rng = np.random.default_rng(m)
    w = rng.standard_normal((groups * rows, k)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[type_name]
    raw = gguf.quants.quantize(w, kind).view(np.uint8).reshape(groups * rows, -1)
    decoded = gguf.quants.dequantize(raw, kind).reshape(groups, rows, k)
    x = rng.standard_normal((m, groups, k + gap)).astype(np.float32)
    with bench() as b:
        out = product(b, raw, type_name, x, rows, gap, unpacked)
    expected = np.einsum("mgk,grk->mgr", x[..., :k].astype(float), decoded)
    tolerance = 1e-4 if type_name != "Q8_0" else 0.5
    assert np.abs(out[..., :rows] - expected).max() < tolerance
    assert np.isnan(out[..., rows:]).all()


def test_columns_of_groups_are_copied_to_where_they_belong() -> None:
    x = np.random.default_rng(0).standard_normal((7, 3, 48)).astype(np.float32)
    with bench() as b:
        src, out = b.array(x), b.array(np.zeros((7, 3, 64)))
        b.rows(7)
        b.run(grouped.copy_groups, src.ctypes.data + 4 * 32, src.strides[0], 3, src.strides[1], 16,
              out.ctypes.data + 4 * 48, out.strides[0], out.strides[1], job.ROWS)  # fmt: skip
    assert np.array_equal(out[..., 48:], x[..., 32:])
    assert not out[..., :48].any()
