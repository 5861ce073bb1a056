"""The store against a model of it: whatever is done in whatever order, no wrong byte and no wrong sum.

The oracle is the set of prefixes ever offered under each root, and of the points offered with them, with the
bytes that a model would compute for them. A look-up may return less than was written only if something was
evicted, damaged or dropped, or thinned out among the points of its prompt.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store import Fingerprint, Outcome, UnknownName
from store.parts import part_key
from store.update import read_ledger
from tests.store import kv

BUDGET = 3 << 20
MEMORY = Path("/dev/shm")
SCALE = 8
MAX_POINTS = 3
RUNS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from((3, 40, 96, 130, 256, 300))), min_size=1, max_size=4
)
SHARES = st.sets(st.sampled_from((0.1, 0.3, 0.5, 0.8, 1.0)), max_size=4)
NAMES = st.sampled_from(("a", "b", "c"))
OTHER = Fingerprint((*kv.FINGERPRINT.fields, ("salt", b"other")))


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.exists() else None)
        self._path = Path(self._folder.name)
        self._offered: dict[bytes, list[kv.Tokens]] = {}
        self._points: dict[bytes, list[kv.Tokens]] = {}
        self._saves: dict[str, tuple[bytes, kv.Tokens, int]] = {}
        self._lossless = True

    @initialize()
    def start(self) -> None:
        self._open()

    def _open(self) -> None:
        self.store = kv.open_store(self._path, BUDGET, max_points=MAX_POINTS)
        self.roots = [self.store.register(fingerprint) for fingerprint in (kv.FINGERPRINT, OTHER)]

    def teardown(self) -> None:
        self.store.close()
        self._folder.cleanup()

    @rule(which=st.integers(0, 1), runs=RUNS, shares=SHARES)
    def offer(self, which: int, runs: list[tuple[int, int]], shares: set[float]) -> None:
        prefix = kv.tokens(*runs)
        root = self.roots[which]
        points = sorted({max(1, int(share * len(prefix))) for share in shares})
        result = kv.Offer(self.store, root, prefix, scale=SCALE, points=points).wait()
        if result.outcome is Outcome.WRITTEN:
            assert result.n_tokens == len(prefix)
            self._offered.setdefault(root, []).append(prefix)
            self._points.setdefault(root, []).extend(prefix[:n_tokens] for n_tokens in points)
            self._heal(root, prefix, points)
        else:
            assert "budget" in result.reason
            self._lossless = False
        if self.store.statistics().evicted:
            self._lossless = False

    def _heal(self, root: bytes, prefix: kv.Tokens, points: list[int]) -> None:
        """Damage not met so far shows itself at the restore; writing the prefix again then mends it."""
        last = points[-1] if points else 0
        for _ in range(1 if self._intact else 12):
            restored = kv.restore(self.store, root, prefix, SCALE)
            if restored == len(prefix) and kv.resume(self.store, root, prefix, SCALE) >= last:
                return
            assert self.store.flush(120)
            kv.write(self.store, root, prefix, scale=SCALE, points=points)
        assert kv.restore(self.store, root, prefix, SCALE) == len(prefix)
        assert kv.resume(self.store, root, prefix, SCALE) >= last

    @rule(which=st.integers(0, 1), runs=RUNS)
    def restore(self, which: int, runs: list[tuple[int, int]]) -> None:
        prompt = kv.tokens(*runs)
        root = self.roots[which]
        restored = kv.restore(self.store, root, prompt, SCALE)
        best = max((_common(prompt, known) for known in self._offered.get(root, [])), default=0)
        assert restored <= best, "more was restored than was ever written"
        if self._lossless:
            assert restored == best
        self._resume(root, prompt)

    def _resume(self, root: bytes, prompt: kv.Tokens) -> None:
        """Only where a point was offered, and there if there were never too many."""
        resumed = kv.resume(self.store, root, prompt, SCALE)
        usable = [p for p in self._points.get(root, []) if _common(prompt, p) == len(p)]
        assert resumed in {0, *map(len, usable)}
        if self._lossless and len({point.tobytes() for point in self._points.get(root, [])}) <= MAX_POINTS:
            assert resumed == max(map(len, usable), default=0)

    @rule(name=NAMES, which=st.integers(0, 1), data=st.data())
    def save(self, name: str, which: int, data: st.DataObject) -> None:
        root = self.roots[which]
        known = [p for p in self._offered.get(root, []) if self.store.lookup(root, p).n_tokens == len(p)]
        if known:
            prefix = data.draw(st.sampled_from(known))
            info = self.store.save_manifest(name, root, prefix)
            assert info.n_tokens == len(prefix)
            self._saves[name] = (root, prefix, info.n_point)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if self._saves.pop(name, None):
            self.store.delete_manifest(name)
        else:
            try:
                self.store.delete_manifest(name)
            except UnknownName:
                return
            raise AssertionError("a save that does not exist was deleted")

    @rule(name=NAMES)
    def recall(self, name: str) -> None:
        if name in self._saves:
            root, prefix, n_point = self._saves[name]
            manifest = self.store.manifest(name)
            assert np.array_equal(manifest.tokens, prefix)
            if self._intact:
                assert manifest.n_restorable == len(prefix)
                assert kv.restore(self.store, root, prefix, SCALE) == len(prefix)
                assert manifest.info.n_point == n_point
                assert kv.resume(self.store, root, prefix, SCALE) >= n_point

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._open()

    @rule()
    def reopen_after_a_crash(self) -> None:
        self.store.close()
        (self._path / "store" / "owner.lock").unlink()
        self._open()
        assert self.store.statistics().rebuilt == 0

    @rule(data=st.data(), how=st.sampled_from(("flip", "drop", "shorten")))
    def damage_a_part(self, data: st.DataObject, how: str) -> None:
        """Between two runs, change the bytes of one part in the file."""
        self.store.close()
        self._open()
        environment = self.store.environment
        keys = environment.read(
            lambda txn: [bytes(key) for key in txn.cursor(db=environment.dat).iternext(True, False)]
        )
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        at = data.draw(st.integers(0, 10_000))

        def body(update: object) -> None:
            txn = update.txn  # type: ignore[attr-defined]
            value = np.frombuffer(txn.get(key, db=environment.dat), np.uint8).copy()
            if how == "drop":
                txn.delete(key, db=environment.dat)
            elif how == "shorten":
                txn.put(key, value[:-1].data, db=environment.dat)
            else:
                value[at % value.size] ^= 1 << (at % 8)
                txn.put(key, value.data, db=environment.dat)

        self.store.writer.order(body, 20)
        assert key.startswith(part_key(key[1:33], 0, 0)[:33])
        self._lossless = self._intact = False

    @precondition(lambda self: self._offered)
    @rule(share=st.sampled_from((0.0, 0.3, 0.8)))
    def evict(self, share: float) -> None:
        writer = self.store.writer
        live = self.store.statistics().live_bytes

        def body(update: object) -> None:
            from store.insertion import evict

            evict(update, int(live * share), lambda block: False, 10_000)  # type: ignore[arg-type]

        writer.order(body, 20)
        self._lossless = False

    _intact = True

    @invariant()
    def everything_adds_up(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.flush(120)
        assert not kv.problems(self.store)
        environment = self.store.environment
        ledger = environment.read(lambda txn: read_ledger(environment, txn))
        assert ledger.live_bytes <= BUDGET
        assert {info.name for info in self.store.list_manifests()} == set(self._saves)
        assert self.store.statistics().state == "ok"


def _common(a: kv.Tokens, b: kv.Tokens) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if different.size else n


SETTINGS = settings(
    max_examples=5,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


class TestStore(StoreMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = SETTINGS


@pytest.mark.slow
class TestStoreForLong(StoreMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(SETTINGS, max_examples=50, stateful_step_count=50)
