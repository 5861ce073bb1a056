"""Run kernels on numpy arrays, and the numpy references they are compared with."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from runtime.kernels.formats import FORMATS
from runtime.kernels.matmul import MATMUL
from runtime.kernels.pack import pack, packed_bytes
from runtime.kernels.quantise import act_bytes, block_size, quantise
from runtime.kernels.tape import JOB_VARS, SCRATCH, Native, Op, W, program
from runtime.kernels.unpacked import PACK, matmul_unpacked
from runtime.team import Team

VECTORS = Path(__file__).parents[2] / "data/quants/vectors.npz"
K = 768  # columns of the vectors

#: types of the models emberd is tried with; the others' kernels take minutes to compile
EVERYDAY = ("F32", "F16", "Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K")


@cache
def vectors(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of GGUF bytes of a type, and the f32 rows they decode to."""
    with np.load(VECTORS) as data:
        return data[f"{name}.raw"], data[f"{name}.deq"]


def aligned(n_bytes: int) -> np.ndarray:
    """Zeroed bytes that begin at a cache line and are followed by one."""
    memory = np.zeros(n_bytes + 128, np.uint8)
    at = -memory.ctypes.data % 64
    return memory[at : at + n_bytes + 64]


def run_op(op: Op, params: list[int | Native], variables: list[int], n_threads: int = 1) -> None:
    """One op on a team; `variables` are the job's."""
    tape, scratch = np.zeros(W, np.int64), aligned(SCRATCH * n_threads)
    tape[: 1 + len(params)] = [op.address, *(p.address if isinstance(p, Native) else p for p in params)]
    job = np.zeros(JOB_VARS // 8 + len(variables), np.int64)
    job[:3] = [tape.ctypes.data, 1, scratch.ctypes.data]
    job[JOB_VARS // 8 :] = variables
    with Team(program(), n_threads) as team:
        assert team.run(job.ctypes.data)


def packed(name: str, raw: np.ndarray, k: int, n_threads: int = 1) -> np.ndarray:
    raw = np.ascontiguousarray(raw)
    out = aligned(packed_bytes(name, len(raw), k))
    pack(name, raw.ctypes.data, len(raw), k, out.ctypes.data, n_threads)
    return out


def quantised(x: np.ndarray, kind: int, pieces: int = 1) -> np.ndarray:
    """Column tiles of f32 rows x, quantised in so many calls."""
    x = np.ascontiguousarray(x, np.float32)
    m, k = x.shape
    out = aligned(act_bytes(kind, k) * m)
    edges = np.linspace(0, m, pieces + 1).astype(int)
    for j0, j1 in pairwise(edges):
        quantise(x.ctypes.data, x.strides[0], int(j0), int(j1), m, k, out.ctypes.data, kind)
    return out


def matmul(
    name: str, raw: np.ndarray, x: np.ndarray, n_threads: int = 1, residual: np.ndarray | None = None,
    repack: bool = True,
) -> np.ndarray:  # fmt: skip
    """x [m, k] times the rows of GGUF bytes [n, ...], through packing and the tape: f32 [m, n]."""
    fmt = FORMATS[name]
    n, (m, k) = len(raw), x.shape
    n_panels = -(-n // 16)
    w, act = packed(name, raw, k) if repack else np.ascontiguousarray(raw), quantised(x, fmt.act_kind)
    out = np.zeros((m, 16 * n_panels), np.float32)
    target = out
    if residual is not None:
        target = np.zeros_like(out)
        target[:, :n] = residual
    addresses = [w.ctypes.data, n_panels, act.ctypes.data, k, out.ctypes.data, out.strides[0]]
    params: list[int | Native] = [*addresses, 0 if residual is None else target.ctypes.data, 1]
    if not repack:
        params += [MATMUL[name], PACK[name], n, fmt.panel_bytes(k)]
    run_op(MATMUL[name] if repack else matmul_unpacked, params, [0, m], n_threads)
    return target[:, :n].copy()


def rounded_activations(x: np.ndarray, kind: int) -> np.ndarray:
    """What a kind's int8 codes stand for, float64: per block round(x / d) * d, d = max|x| / 127 in f32."""
    if act_bytes(kind, 16) == 64:
        return x.astype(np.float64)
    blocks = x.reshape(len(x), -1, block_size(kind))
    d = np.abs(blocks).max(-1, keepdims=True) * np.float32(1 / 127)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d > np.float32(1.2e-38))
    codes = np.rint(blocks * inverse)
    return (codes.astype(np.float64) * d).reshape(x.shape)
