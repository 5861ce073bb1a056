"""A model with a tail: one wrong byte of state, ring or row spoils all logits after it."""

import ctypes
import hashlib

import numpy as np
import numpy.typing as npt

from runtime.engine import SamplingParams
from runtime.engine.sampling import Sampler
from runtime.errors import StepCancelled
from runtime.memory.layout import BLOCK, TILE, GroupLayout, MemoryLayout
from runtime.memory.points import Point
from runtime.memory.tail import RingLayout, StateLayout, TailLayout
from runtime.runner import Run
from tests.runtime.engine.fakes import EOG, FakeRunner, logits_of

N_UBATCH = 64
STATE = StateLayout("state", 32)


def ring(name: str, row_bytes: int, period: int, back: int) -> RingLayout:
    return RingLayout(name, name, row_bytes, back + period + N_UBATCH, period, back)


RECURRENT = MemoryLayout((), TailLayout(STATE))
HYBRID = MemoryLayout((GroupLayout("rows", "rows", 8 * TILE),), TailLayout(STATE, (ring("conv", 8, 1, 3),)))
COMPRESSED = MemoryLayout(
    (GroupLayout("fours", "fours", 8, unit=4), GroupLayout("wide", "wide", 4, unit=128)),
    TailLayout(None, (ring("raw", 8, 1, 20), ring("accumulators", 4, 128, 0))),
)
WINDOWED = MemoryLayout(
    (GroupLayout("rows", "rows", 8 * TILE), GroupLayout("window", "window", 4 * TILE, window=100)),
    TailLayout(STATE, (ring("conv", 8, 1, 3),)),
)
LAYOUTS = {"recurrent": RECURRENT, "hybrid": HYBRID, "compressed": COMPRESSED, "windowed": WINDOWED}


def _hash(size: int, *parts: bytes | int) -> bytes:
    data = b"".join(part if isinstance(part, bytes) else part.to_bytes(4, "little") for part in parts)
    return hashlib.blake2b(data, digest_size=size).digest()


class Growth:
    """What a sequence remembers after its tokens, of each ring only what is needed."""

    def __init__(self, layout: MemoryLayout) -> None:
        assert layout.tail is not None
        self.layout, self.tail = layout, layout.tail
        self.n_tokens = 0
        self.state = bytes(self.tail.state_bytes)
        self.rings: list[dict[int, bytes]] = [{} for _ in self.tail.rings]
        self.rows: list[dict[int, bytes]] = [{} for _ in layout.groups]

    def append(self, token: int) -> None:
        p = self.n_tokens
        seen = self.needed(p)
        if self.state:
            self.state = _hash(len(self.state), self.state, token, p, *seen)
        for i, r in enumerate(self.tail.rings):
            self.rings[i][p] = _hash(r.row_bytes, r.name.encode(), token, p, *seen)
        for g, group in enumerate(self.layout.groups):
            n_covered = 1 if group.unit == TILE else group.unit
            if (p + 1) % n_covered == 0:
                r, size = p // n_covered, row_bytes(group)
                before = self.rows[g].get(r - 1, b"")
                self.rows[g][r] = _hash(size, g, before, token, p, self.state, *seen)
        self.n_tokens = p + 1

    def needed(self, n: int) -> list[bytes]:
        return [self.rings[i][p] for i, r in enumerate(self.tail.rings) for p in range(r.first(n), n)]

    def logits(self) -> npt.NDArray[np.float32]:
        n = self.n_tokens
        rows = [
            b"".join(self.rows[g][r] for r in range(group.first(n), n_rows(group, n)))
            for g, group in enumerate(self.layout.groups)
        ]
        return logits_of([*rows, self.state, b"".join(self.needed(n))])


class Truth:
    """What follows from tokens, remembered because the same prefixes come again and again."""

    def __init__(self, layout: MemoryLayout) -> None:
        self._layout = layout
        self._known: dict[bytes, Growth] = {b"": Growth(layout)}

    def growth(self, tokens: npt.NDArray[np.int32]) -> Growth:
        key = tokens.astype("<u2").tobytes()
        if key not in self._known:
            begun = self._known[max((k for k in self._known if key.startswith(k)), key=len)]
            grown = Growth(self._layout)
            grown.n_tokens, grown.state = begun.n_tokens, begun.state
            grown.rings = [ring.copy() for ring in begun.rings]
            grown.rows = [rows.copy() for rows in begun.rows]
            for token in tokens[begun.n_tokens :].tolist():
                grown.append(token)
            self._known[key] = grown
        return self._known[key]

    def parts(self, tokens: npt.NDArray[np.int32]) -> list[bytes]:
        grown, n = self.growth(tokens), len(tokens)
        rings = (
            b"".join(rows[p] for p in range(ring.first(n), n))
            for ring, rows in zip(grown.tail.rings, grown.rings, strict=True)
        )
        return [part for part in (grown.state, *rings) if part]

    def check(self, point: Point, tokens: npt.NDArray[np.int32]) -> None:
        """The point, of a sequence that begins with `tokens`, is what its tokens leave, to the last bit."""
        mine = tokens[: point.n_tokens]
        assert [part.tobytes() for part in point.parts] == self.parts(mine)
        assert point.logits is None or np.array_equal(point.logits, self.growth(mine).logits())


def row_bytes(group: GroupLayout) -> int:
    return group.tile_bytes // (TILE if group.unit == TILE else 1)


def n_rows(group: GroupLayout, n_tokens: int) -> int:
    return n_tokens if group.unit == TILE else n_tokens // group.unit


def expected(layout: MemoryLayout, prompt: np.ndarray, n_predict: int) -> list[int]:
    """The tokens that a model which remembers nothing would answer."""
    sampler = Sampler(SamplingParams(temperature=0.0), prompt, frozenset({EOG}), 1 << 20)
    growth, ids = Growth(layout), []
    for token in prompt.tolist():
        growth.append(token)
    for _ in range(n_predict):
        ids.append(sampler.sample(growth.logits()).id)
        growth.append(ids[-1])
    return ids


def _memory(address: int, n_bytes: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer((ctypes.c_uint8 * n_bytes).from_address(address), np.uint8)


class TailedRunner(FakeRunner):
    """Reads and writes nothing but the memory that its runs name."""

    def __init__(self, layout: MemoryLayout) -> None:
        super().__init__(N_UBATCH)
        self.layout = layout
        assert layout.tail is not None
        self.tail = layout.tail
        self._out = np.zeros((0, self.n_vocab), np.float32)

    def step(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        # As a real one, it overwrites what it returned before.
        self._out[:] = np.nan
        self.before_step(runs)
        if self._cancelled.is_set():
            self._cancelled.clear()
            self.n_given_up += 1
            for run in runs:
                self._store(run, self._grown(run), spoiled=True)
            raise StepCancelled("cancelled")
        self.steps.append([(run.start, len(run.tokens)) for run in runs])
        assert sum(len(run.tokens) for run in runs) <= self.n_ubatch
        for run in runs:
            self._store(run, self._grown(run))
        out = [self._read(run, run.start + len(run.tokens)).logits() for run in runs if run.logits == "last"]
        self._out = np.array(out, np.float32).reshape(len(out), self.n_vocab)
        return self._out

    def clear_rows(self, addresses: tuple[int, ...], first: int, end: int) -> None:
        for group, address in zip(self.layout.groups, addresses, strict=True):
            n_covered = 1 if group.unit == TILE else group.unit
            for p in range(first, end):
                if (p + 1) % n_covered == 0:
                    _memory(address + p // n_covered * row_bytes(group), row_bytes(group))[:] = 0

    def _grown(self, run: Run) -> Growth:
        growth = self._read(run, run.start, of_step=False)
        for token in run.tokens.tolist():
            growth.append(token)
        return growth

    def _read(self, run: Run, n_tokens: int, of_step: bool = True) -> Growth:
        growth = Growth(self.layout)
        growth.n_tokens = n_tokens
        state = run.tail.after if of_step else run.tail.before
        growth.state = _memory(state, len(growth.state)).tobytes() if growth.state else b""
        for i, r in enumerate(self.tail.rings):
            for p in range(r.first(n_tokens), n_tokens):
                growth.rings[i][p] = self._ring_row(run, i, p).tobytes()
        for g, group in enumerate(self.layout.groups):
            for r in range(group.first(n_tokens), n_rows(group, n_tokens)):
                growth.rows[g][r] = self._row(run, g, r).tobytes()
        return growth

    def _store(self, run: Run, growth: Growth, spoiled: bool = False) -> None:
        """`spoiled`: what a cancelled step leaves, nonsense wherever it may write."""

        def put(target: npt.NDArray[np.uint8], data: bytes) -> None:
            target[:] = 0xEE if spoiled else np.frombuffer(data, np.uint8)

        if growth.state:
            put(_memory(run.tail.after, len(growth.state)), growth.state)
        for i in range(len(self.tail.rings)):
            for p in range(run.start, growth.n_tokens):
                put(self._ring_row(run, i, p), growth.rings[i][p])
        for g, group in enumerate(self.layout.groups):
            for r in range(n_rows(group, run.start), n_rows(group, growth.n_tokens)):
                put(self._row(run, g, r), growth.rows[g][r])

    def _ring_row(self, run: Run, i: int, p: int) -> npt.NDArray[np.uint8]:
        r = self.tail.rings[i]
        at = run.tail.rings + self.tail.ring_offsets[i] + p % r.capacity * r.row_bytes
        return _memory(at, r.row_bytes)

    def _row(self, run: Run, g: int, r: int) -> npt.NDArray[np.uint8]:
        group = self.layout.groups[g]
        per_block = BLOCK if group.unit == TILE else BLOCK // group.unit
        address = int(run.tables[g][r // per_block]) + r % per_block * row_bytes(group)
        return _memory(address, row_bytes(group))
