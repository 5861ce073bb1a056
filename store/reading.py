"""Finding and copying out, as the owner of a store sees it: on any thread, and never with an exception."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import lmdb
import numpy as np

from store import chain
from store.chain import Tokens
from store.environment import Environment, Txn
from store.errors import Damaged, StoreClosed
from store.lookup import BlockRef, Finder, Loaded, Match, copy_block, copy_point
from store.parts import MAX_PART_BYTES, Copy
from store.pins import Pins
from store.points import PointRef
from store.reader import Reader
from store.recovery import CORRUPT
from store.statistics import Counters
from store.update import Segment, Update
from store.writer import Writer

log = logging.getLogger("store")
Ref = BlockRef | PointRef
Wanted = Sequence[tuple[BlockRef, Sequence[Segment]]]


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
            finder = Finder(self._env, txn, self._distrusted.__contains__)
            return finder.find(root, elements), finder.damaged

        try:
            match, damaged = self._env.read(body)
        except (StoreClosed, lmdb.Error, OSError) as error:
            self._report(error)
            self._counters.add(lookups_miss=1)
            return Match(0, (), str(error))
        self._pins.hold(ref.id for ref in match.blocks)
        self._pins.hold(ref.id for ref in match.points)
        if damaged:
            self._report(Damaged("a look-up found a damaged record"))
        whole = match.n_tokens == len(tokens)
        kind = "lookups_hit" if whole else "lookups_partial" if match.n_tokens else "lookups_miss"
        self._counters.add(**{kind: 1})
        return match

    def load_all(self, wanted: Wanted) -> tuple[int, str]:
        for i, (ref, destinations) in enumerate(wanted):
            loaded = self.load(ref, destinations)
            if not loaded:
                return i, loaded.reason
        return len(wanted), ""

    def load(self, ref: Ref, destinations: Sequence[Segment]) -> Loaded:
        started = time.perf_counter()
        try:
            scratch = self._scratch.buffer
        except AttributeError:
            scratch = self._scratch.buffer = np.empty(MAX_PART_BYTES, np.uint8)

        def body(txn: Txn) -> Loaded:
            if isinstance(ref, PointRef):
                return copy_point(self._env, txn, ref, destinations, scratch, self._copy)
            return copy_block(self._env, txn, ref, destinations, scratch, self._copy)

        try:
            loaded = self._env.read(body)
        except Damaged as error:
            self._quarantine(ref, str(error))
            return Loaded(False, f"{_name(ref)} is damaged: {error}")
        except (StoreClosed, lmdb.Error, OSError) as error:
            self._report(error)
            return Loaded(False, str(error))
        if loaded:
            self._note_use(ref, sum(segment.data.size for segment in destinations), started)
        return loaded

    def _note_use(self, ref: Ref, n_bytes: int, started: float) -> None:
        self._counters.add(
            tokens_reused=ref.n_rows if isinstance(ref, BlockRef) else 0,
            points_reused=int(isinstance(ref, PointRef)),
            bytes_read=n_bytes,
            read_seconds=time.perf_counter() - started,
        )
        self._pins.release(ref.id)
        if self._writer:
            self._writer.touch(ref.id)

    def _report(self, error: Exception) -> None:
        """Have the writer meet a reader's trouble with the file: it repairs, or sets aside."""
        if self._writer and isinstance(error, (Damaged, *CORRUPT)):

            def meet(update: Update) -> None:
                raise error

            self._writer.post(meet)

    def _quarantine(self, ref: Ref, why: str) -> None:
        """Trust a block or point no more from this moment on, and have its bytes dropped."""
        self._distrusted.add(ref.id)
        self._counters.add(quarantined=1)

        def body(update: Update) -> None:
            if ref.id not in self._distrusted:
                return  # written anew in the meantime
            update.note_quarantine(ref.id, why)
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
