"""What points of sequences cost, beside plain copies of as many bytes: memory of real dimensions, no model.

Each round is what happens from one point to the next. Caches are full of other things, as after a step that
read the weights. Then come a capture, with the memory that the next step writes, for the point may have kept
its last; memory made ready for the next point; and a load by another sequence. The first rounds find new
memory, the others that of points which had to go.
"""

import ctypes
import mmap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from runtime.memory.points import Point, Tail, TailPool
from runtime.memory.tail import RingLayout, StateLayout, TailLayout

N_POINTS = 32
"""As `--ctx-checkpoints`."""
ROUNDS = 3 * N_POINTS
_OTHER_BYTES = 64 << 20
_N_UBATCH = 512
_WORKS = ("capture", "load", "copy")


def _states(n_layers: int, n_floats: int) -> TailLayout:
    return TailLayout(StateLayout("bench", 4 * n_layers * n_floats))


def _compressing(ratio: int, n_layers: int, n_floats: int, back: int) -> RingLayout:
    """Values and scores of f32 until a block of `ratio` positions is whole."""
    row_bytes = n_layers * 2 * 4 * n_floats
    return RingLayout(f"compressing {ratio}", "bench", row_bytes, back + ratio + _N_UBATCH, ratio, back)


MAMBA2 = _states(24, 1536 * 128 + 3 * (1536 + 2 * 128))
"""Mamba 2 130M: 24 layers of 1,536 x 128, convolutions over three more rows."""

QWEN3NEXT = _states(36, 32 * 128 * 128 + 3 * 8192)
"""Qwen3 Next 80B-A3B: 36 layers of 32 heads of 128 x 128, convolutions over three more rows."""

FLASH = TailLayout(
    None,
    (
        RingLayout("raw", "bench", 43 * 1024, 127 + 1 + _N_UBATCH, back=127),
        _compressing(4, 21, 1024 + 256, 4),
        _compressing(128, 20, 512, 0),
    ),
)
"""DeepSeek V4 Flash: 43 layers, of which 21 compress 4 positions, with their index, and 20 compress 128."""


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    layout: TailLayout
    n_tokens: int


CASES = (
    Case("states, Mamba 2 130M", MAMBA2, 8192),
    Case("states, Qwen3 Next 80B", QWEN3NEXT, 8192),
    Case("rings, DeepSeek V4 Flash at 8192", FLASH, 8192),
    Case("rings, DeepSeek V4 Flash at 8319", FLASH, 8319),
)


def rows() -> Iterator[dict[str, object]]:
    """Bytes, and median and maximum in milliseconds of each kind of work, by case."""
    for case in CASES:
        times = _measured(case)
        n_bytes = case.layout.captured_bytes(case.n_tokens)
        row: dict[str, object] = {"kind": case.kind, "n_bytes": n_bytes}
        for name, ms in times.items():
            row |= {f"{name}_ms": median(ms), f"{name}_max_ms": max(ms)}
        yield row


def table(rows: list[dict[str, object]]) -> str:
    """As Markdown; "prepare" is the longest that a step waits for its part of making memory ready."""
    lines = [
        "| point | MiB | capture ms | max | load ms | max | copy ms | max "
        "| capture / copy | load / copy | prepare max |",
        "| --- |" + " ---: |" * 10,
    ]
    for row in rows:
        value = {name: float(str(number)) for name, number in row.items() if name != "kind"}
        times = [f"{value[f'{name}_ms']:.2f} | {value[f'{name}_max_ms']:.2f}" for name in _WORKS]
        ratios = [f"{value[f'{name}_ms'] / value['copy_ms']:.2f}" for name in ("capture", "load")]
        cells = [str(row["kind"]), f"{value['n_bytes'] / 2**20:.1f}", *times, *ratios]
        lines.append(f"| {' | '.join(cells)} | {value['prepare_max_ms']:.2f} |")
    return "\n".join(lines)


def _measured(case: Case) -> dict[str, list[float]]:
    layout, n = case.layout, case.n_tokens
    n_bytes = layout.captured_bytes(n)
    pool = TailPool(layout, layout.memory_bytes(2, N_POINTS * n_bytes))
    tail, other = _grown(pool, n), _grown(pool, n)
    others = np.ones(_OTHER_BYTES, np.uint8)
    source, target = np.ones(n_bytes, np.uint8), np.ones(n_bytes, np.uint8)
    times: dict[str, list[float]] = {name: [] for name in (*_WORKS, "prepare")}
    points: list[Point] = []
    _prepare(pool, times["prepare"])
    for _ in range(ROUNDS):
        others += 1
        times["capture"].append(_ms(lambda: points.append(_captured(pool, tail, n))))
        del points[:-N_POINTS]
        _write(pool, tail)
        tail.commit(n - 1)
        _prepare(pool, times["prepare"])
        others += 1
        times["load"].append(_ms(lambda: other.load(points[-1])))
        others += 1
        times["copy"].append(_ms(lambda: np.copyto(target, source)))
    return times


def _grown(pool: TailPool, n_tokens: int) -> Tail:
    """The tail of a sequence that came so far, every byte of it written."""
    tail = Tail(pool)
    tail.reserve(n_tokens)
    _write(pool, tail)
    if pool.layout.rings:
        _memory(tail.addresses.rings, pool.ring_offsets[-1]).fill(1)
    tail.commit(n_tokens - 1)
    return tail


def _write(pool: TailPool, tail: Tail) -> None:
    """As a step does, whose rows in rings are too few to matter."""
    if pool.layout.state is not None:
        _memory(tail.addresses.after, pool.layout.state_bytes).fill(1)


def _captured(pool: TailPool, tail: Tail, n_tokens: int) -> Point:
    """A point, and with it the memory that the next step writes, each page touched."""
    point = tail.capture(n_tokens)
    tail.reserve(n_tokens)
    if pool.layout.state is not None:
        _memory(tail.addresses.after, pool.layout.state_bytes)[:: mmap.PAGESIZE] = 0
    return point


def _prepare(pool: TailPool, times: list[float]) -> None:
    ready = False
    while not ready:
        begin = time.perf_counter()
        ready = not pool.prepare()
        times.append((time.perf_counter() - begin) * 1e3)


def _memory(address: int, n_bytes: int) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address))


def _ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3
