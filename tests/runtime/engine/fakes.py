"""A model whose logits depend on every byte of memory that a real one would read, and the world around it."""

import ctypes
import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from runtime.engine import Event
from runtime.errors import StepCancelled, UnsupportedModel
from runtime.memory.layout import BLOCK, TILE, GroupLayout, MemoryLayout
from runtime.runner import Run

E = TypeVar("E", bound=Event)

ROW_BYTES = (8, 4)
LAYOUT = MemoryLayout(
    tuple(GroupLayout(f"g{i}", f"fake-{n}", n * TILE, window=64 * i) for i, n in enumerate(ROW_BYTES))
)
EOG = 256
N_VOCAB = 258


def row_of(before: bytes, token: int, position: int, group: int) -> bytes:
    """The memory row of a position from the row before it: one wrong row spoils all that follow."""
    data = before + token.to_bytes(4, "little") + position.to_bytes(4, "little") + bytes([group])
    return hashlib.blake2b(data, digest_size=ROW_BYTES[group]).digest()


class Oracle:
    """The memory rows of a growing sequence, computed without any memory."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.n_tokens = 0
        self.rows = [bytearray() for _ in ROW_BYTES]
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        for group, size in enumerate(ROW_BYTES):
            before = bytes(self.rows[group][-size:]) or bytes(size)
            self.rows[group] += row_of(before, int(token), self.n_tokens, group)
        self.n_tokens += 1

    def logits(self) -> npt.NDArray[np.float32]:
        """After the last token: all that it sees decides them."""
        seen = zip(self.rows, ROW_BYTES, LAYOUT.groups, strict=True)
        return logits_of([rows[first_seen(group, self.n_tokens) * size :] for rows, size, group in seen])


def logits_of(groups: Iterable[bytes | bytearray]) -> npt.NDArray[np.float32]:
    digest = hashlib.blake2b(b"".join(groups), digest_size=16).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    logits = generator.normal(0.0, 2.0, N_VOCAB).astype(np.float32)
    logits[EOG] = -30.0
    return logits


def first_seen(group: GroupLayout, n_tokens: int) -> int:
    """The first position that the last of `n_tokens` sees."""
    return max(0, n_tokens - group.window) if group.window else 0


def read_rows(table: npt.NDArray[np.int64], n_rows: int, row_bytes: int, first: int = 0) -> bytes:
    """The rows of a sequence from `first` on, out of tiles that hold byte i of 16 positions side by side."""
    blocks = []
    for i in range(first // BLOCK, -(-n_rows // BLOCK)):
        tiles = _block(int(table[i]), row_bytes)
        blocks.append(tiles.transpose(0, 2, 1).reshape(BLOCK, row_bytes))
    start = first // BLOCK * BLOCK
    return np.concatenate(blocks)[first - start : n_rows - start].tobytes() if blocks else b""


def _block(address: int, row_bytes: int) -> npt.NDArray[np.uint8]:
    raw = (ctypes.c_uint8 * (BLOCK * row_bytes)).from_address(address)
    return np.frombuffer(raw, np.uint8).reshape(BLOCK // TILE, row_bytes, TILE)


class FakeRunner:
    """Writes hashes as memory rows through the given addresses; its logits depend on all rows it can see."""

    n_vocab = N_VOCAB
    n_embd = 0
    layout = LAYOUT

    def __init__(self, n_ubatch: int = 512) -> None:
        self.n_ubatch = n_ubatch
        self.steps: list[list[tuple[int, int]]] = []
        self.before_step: Callable[[list[Run]], None] = lambda runs: None
        self.bias: dict[int, float] = {}
        self.n_given_up = 0
        self._cancelled = threading.Event()

    def step(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        self.before_step(runs)
        if self._cancelled.is_set():
            self._cancelled.clear()
            self.n_given_up += 1
            for run in runs:
                self._spoil(run)
            raise StepCancelled("cancelled")
        self.steps.append([(run.start, len(run.tokens)) for run in runs])
        assert sum(len(run.tokens) for run in runs) <= self.n_ubatch
        out = []
        for run in runs:
            self._write(run)
        for run in runs:
            if run.logits == "last":
                n = run.start + len(run.tokens)
                seen = [first_seen(group, n) for group in LAYOUT.groups]
                out.append(logits_of(map(read_rows, run.tables, (n, n), ROW_BYTES, seen)))
                for token, bias in self.bias.items():
                    out[-1][token] += bias
        return np.array(out, np.float32).reshape(len(out), N_VOCAB)

    def embed(self, runs: list[Run]) -> npt.NDArray[np.float32]:
        raise UnsupportedModel("this model computes logits")

    def cancel(self) -> None:
        self._cancelled.set()

    def clear_rows(self, addresses: tuple[int, ...], first: int, end: int) -> None:
        for address, size in zip(addresses, ROW_BYTES, strict=True):
            for row in range(first, end):
                _block(address, size)[row // TILE, :, row % TILE] = 0

    def close(self) -> None: ...

    def _spoil(self, run: Run) -> None:
        """What a cancelled step leaves: new rows written in part, here with nonsense."""
        for table, size in zip(run.tables, ROW_BYTES, strict=True):
            for position in range(run.start, run.start + len(run.tokens)):
                tiles = _block(int(table[position // BLOCK]), size)
                tiles[position % BLOCK // TILE, ::2, position % TILE] = 0xEE

    def _write(self, run: Run) -> None:
        for group, (table, size) in enumerate(zip(run.tables, ROW_BYTES, strict=True)):
            before = bytes(size)
            if run.start:
                previous = run.start - 1
                tiles = _block(int(table[previous // BLOCK]), size)
                before = tiles[previous % BLOCK // TILE, :, previous % TILE].tobytes()
            for position, token in enumerate(run.tokens.tolist(), run.start):
                before = row_of(before, token, position, group)
                tiles = _block(int(table[position // BLOCK]), size)
                tiles[position % BLOCK // TILE, :, position % TILE] = np.frombuffer(before, np.uint8)


class FakeTokenizer:
    """Token i < 256 is the byte i, or what `spelling` says."""

    eog_ids = frozenset({EOG})

    def __init__(self, spelling: dict[int, bytes] | None = None) -> None:
        self._spelling = spelling or {}

    def token_bytes(self, id: int, special: bool = False) -> bytes:
        return self._spelling.get(id, bytes([id]) if id < 256 else b"")


LETTERS = FakeTokenizer({i: bytes([97 + i % 26]) for i in range(N_VOCAB) if i != EOG})


class Inbox:
    """Collects delivered events and waits for the last one of a request."""

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []
        self._arrived = threading.Condition()

    def deliver(self, events: list[Event]) -> None:
        with self._arrived:
            self.batches.append(events)
            self._arrived.notify_all()

    @property
    def events(self) -> list[Event]:
        return [event for batch in list(self.batches) for event in batch]

    def has(self, request_id: int, kind: type[Event]) -> bool:
        return any(e.request_id == request_id and isinstance(e, kind) for e in self.events)

    def wait(self, request_id: int, *kinds: type[E], timeout: float = 120.0) -> E:
        """The first event of one of `kinds` for the request."""

        def find() -> E | None:
            return next((e for e in self.events if e.request_id == request_id and isinstance(e, kinds)), None)

        with self._arrived:
            assert self._arrived.wait_for(lambda: find() is not None, timeout)
            found = find()
        assert found is not None
        return found
