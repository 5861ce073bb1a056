"""Finding and copying out, as the owner of a store sees it: on any thread, and never with an exception."""

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import lmdb
import numpy as np

from store import chain
from store.chain import Tokens
from store.environment import Environment, Txn
from store.errors import Damaged, Gone, StoreClosed
from store.lookup import BlockRef, Finder, Match, pieces_of_block, pieces_of_point
from store.parts import MAX_PART_BYTES, Bytes, Copy, Piece, arrived, mismatch
from store.pins import Pins
from store.points import PointRef
from store.reader import Reader
from store.recovery import CORRUPT
from store.statistics import Counters
from store.update import Segment, Update
from store.writer import Writer

_AT_ONCE_BYTES = 64 << 20
log = logging.getLogger("store")
Ref = BlockRef | PointRef
Wanted = Sequence[tuple[Ref, Sequence[Segment]]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Whether the destinations hold verified bytes (then it is true); `reason` says why not."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


class _Damage(NamedTuple):
    """What is wrong with a block or point: its bytes, or what leads to them."""

    cause: Literal["checksum", "record"]
    text: str


class _Buffers:
    """Room for parts of which only the first bytes are wanted, kept for the thread's next load."""

    def __init__(self, of_thread: threading.local) -> None:
        self._all: list[Bytes] = of_thread.__dict__.setdefault("buffers", [])
        self._n_taken = 0

    def take(self) -> Bytes:
        if self._n_taken == len(self._all):
            self._all.append(np.empty(MAX_PART_BYTES, np.uint8))
        self._n_taken += 1
        return self._all[self._n_taken - 1]


class _Gathering:
    """The pieces of as many of `wanted` as one transaction should copy.

    `ends`: after how many pieces each of them is whole. `reason`, `damage`: why the next is missing.
    """

    def __init__(self, environment: Environment, txn: Txn, wanted: Wanted, buffers: _Buffers) -> None:
        self._env = environment
        self._txn = txn
        self._wanted = wanted
        self._buffers = buffers
        self.ends: list[int] = []
        self.reason = ""
        self.damage: _Damage | None = None

    def pieces(self) -> Iterator[Piece]:
        n_pieces = n_bytes = 0
        for ref, destinations in self._wanted:
            try:
                for piece in self._of(ref, destinations):
                    n_pieces += 1
                    yield piece
            except Gone as error:
                self.reason = str(error)
                return
            except Damaged as error:
                self.damage = _Damage("record", str(error))
                return
            self.ends.append(n_pieces)
            n_bytes += sum(want.data.size for want in destinations)
            if n_bytes >= _AT_ONCE_BYTES:
                return

    def _of(self, ref: Ref, destinations: Sequence[Segment]) -> Iterator[Piece]:
        if isinstance(ref, PointRef):
            return pieces_of_point(self._env, self._txn, ref, destinations, self._buffers.take)
        return pieces_of_block(self._env, self._txn, ref, destinations, self._buffers.take)


class Reading:
    """Look-ups and loads. What is damaged goes into `distrusted`, and to the writer, if there is one."""

    def __init__(
        self,
        environment: Environment,
        writer: Writer | None,
        pins: Pins,
        distrusted: set[bytes],
        counters: Counters,
        copy: Copy,
    ) -> None:
        self._env = environment
        self._writer = writer
        self._pins = pins
        self._distrusted = distrusted
        self._counters = counters
        self._copy = copy
        self._scratch = threading.local()
        self._reader = Reader("store-reader")

    def post(self, call: Callable[[], None]) -> bool:
        return self._reader.post(call)

    def stop(self, deadline: float) -> None:
        """End the thread; what was posted runs before."""
        self._reader.stop(deadline)

    def poison(self) -> None:
        """In a forked child."""
        self._pins = Pins()
        self._counters = Counters()
        self._reader.poison()

    def lookup(self, root: bytes, tokens: Tokens) -> Match:
        elements = chain.encode_tokens(tokens)

        def body(txn: Txn) -> tuple[Match, list[bytes]]:
            finder = Finder(self._env, txn, self._distrusted.__contains__, self._env.memo(txn))
            return finder.find(root, elements), finder.damaged

        try:
            match, damaged = self._env.read(body)
        except (StoreClosed, lmdb.Error, OSError) as error:
            self._report(error)
            self._counters.add(miss_trouble=1)
            return Match(0, (), str(error))
        self.note_found(match, len(tokens))
        if damaged:
            self._report(Damaged("a look-up found a damaged record"))
        return match

    def note_found(self, match: Match, n_wanted: int) -> None:
        """Keep what was found from eviction, and count the look-up."""
        self._pins.hold(ref.id for ref in match.blocks)
        self._pins.hold(ref.id for ref in match.points)
        if match.n_tokens == n_wanted:
            self._counters.add(lookups_hit=1)
        else:
            self._counters.add(**{f"{'partial' if match.n_tokens else 'miss'}_{match.cause}": 1})

    def load_all(self, wanted: Wanted) -> tuple[int, str]:
        """How many of `wanted` were copied, from the first on, and why not more."""
        n_loaded, reason = 0, ""
        while n_loaded < len(wanted) and not reason:
            n, reason = self._load_some(wanted[n_loaded:])
            n_loaded += n
        return n_loaded, reason

    def load(self, ref: Ref, destinations: Sequence[Segment]) -> Loaded:
        n, reason = self._load_some([(ref, destinations)])
        return Loaded(n == 1, reason)

    def _load_some(self, wanted: Wanted) -> tuple[int, str]:
        """As many as one short read transaction should copy, at least one."""
        started = time.perf_counter()
        try:
            n, reason, damage = self._env.read(partial(self._copy_out, wanted))
        except (StoreClosed, lmdb.Error, OSError) as error:
            self._report(error)
            return 0, str(error)
        self._note_use(wanted[:n], started)
        if damage:
            self._quarantine(wanted[n][0], damage)
            reason = f"{_name(wanted[n][0])} is damaged: {damage.text}"
        return n, reason

    def _copy_out(self, wanted: Wanted, txn: Txn) -> tuple[int, str, _Damage | None]:
        """How many arrived, why not more if something is missing, and what is damaged of the next one."""
        gathering = _Gathering(self._env, txn, wanted, _Buffers(self._scratch))
        n_arrived, broken = arrived(gathering.pieces(), self._copy)
        if broken is not None:
            n = bisect_right(gathering.ends, n_arrived)
            return n, "", _Damage("checksum", mismatch(broken))
        return len(gathering.ends), gathering.reason, gathering.damage

    def _note_use(self, loaded: Wanted, started: float) -> None:
        blocks = [ref for ref, _ in loaded if isinstance(ref, BlockRef)]
        self._counters.add(
            tokens_reused=sum(ref.n_rows for ref in blocks),
            points_reused=len(loaded) - len(blocks),
            bytes_read=sum(segment.data.size for _, segments in loaded for segment in segments),
            reads=len(loaded),
            read_seconds=time.perf_counter() - started,
        )
        for ref, _ in loaded:
            self._pins.release(ref.id)
            if self._writer:
                self._writer.touch(ref.id)

    def _report(self, error: Exception) -> None:
        """Have the writer meet a reader's trouble with the file: it repairs, or sets aside."""
        if self._writer and isinstance(error, (Damaged, *CORRUPT)):

            def meet(update: Update) -> None:
                raise error

            self._writer.post(meet)

    def _quarantine(self, ref: Ref, damage: _Damage) -> None:
        """Trust a block or point no more from this moment on, and have its bytes dropped."""
        self._distrusted.add(ref.id)
        self._counters.add(**{f"quarantined_{damage.cause}": 1})

        def body(update: Update) -> None:
            if ref.id not in self._distrusted:
                return  # written anew in the meantime
            update.note_quarantine(ref.id, damage.text)
            if isinstance(ref, PointRef):
                update.drop_damaged_point(ref.key)
            else:
                update.hollow_block(ref.id)

        if self._writer:
            self._writer.post(body)
            # in a transaction of its own: until the first is committed, look-ups still see what it drops
            self._writer.post(lambda update: self._distrusted.discard(ref.id))


def _name(ref: Ref) -> str:
    return f"the point at {ref.n_tokens}" if isinstance(ref, PointRef) else f"block {ref.index}"
