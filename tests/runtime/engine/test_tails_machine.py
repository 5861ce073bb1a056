"""Sequences with a tail in any order of growing, going back, parting, lending and forgetting.

The model is one whose logits a single wrong byte would change; what each sequence would answer, what each
point consists of and which point is found are compared with what follows from the tokens alone.
"""

import mmap

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from runtime.engine.lending import lend
from runtime.engine.port import PrefixSnapshot
from runtime.errors import PoolExhausted, StepCancelled
from runtime.memory.layout import BLOCK
from runtime.memory.pool import BlockPool
from runtime.memory.prefix import Node, PrefixIndex
from runtime.memory.sequence import BlockSequence
from runtime.runner import Run
from tests.runtime.engine.harness import node_tokens
from tests.runtime.engine.tailed import LAYOUTS, N_UBATCH, TailedRunner, Truth

CAPACITY = 3 * BLOCK
TOKENS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from((1, 5, 16, 63, 64))), min_size=1, max_size=3)


class Memory(RuleBasedStateMachine):
    sequences = Bundle("sequences")
    loans = Bundle("loans")

    @initialize(
        kind=st.sampled_from(sorted(LAYOUTS)),
        n_blocks=st.integers(3, 16),
        n_parts=st.integers(6, 40),
        n_tail_pages=st.integers(0, 40),
    )
    def begin(self, kind: str, n_blocks: int, n_parts: int, n_tail_pages: int) -> None:
        self.runner = TailedRunner(LAYOUTS[kind])
        self.truth = Truth(LAYOUTS[kind])
        page = mmap.PAGESIZE
        self.pool = BlockPool(LAYOUTS[kind], n_blocks, n_parts * page, n_tail_pages * page)
        self.index = PrefixIndex(self.pool)
        self.live: list[BlockSequence] = []
        self.lent: list[tuple[PrefixSnapshot, list[bytes]]] = []

    @rule(target=sequences, private=st.booleans())
    def create(self, private: bool) -> BlockSequence:
        return self._keep(BlockSequence(self.index, b"", CAPACITY, private))

    @rule(sequence=sequences, runs=TOKENS, cancelled=st.integers(0, 3), capture=st.booleans())
    def grow(
        self, sequence: BlockSequence, runs: list[tuple[int, int]], cancelled: int, capture: bool
    ) -> None:
        for token, length in runs:
            n = min(length, N_UBATCH, CAPACITY - sequence.n_tokens)
            if not n:
                return
            tokens = np.full(n, token, np.int32)
            if cancelled == 0:
                self.runner.cancel()
            try:
                sequence.reserve(n)
                logits = self.runner.step([self._run(sequence, tokens)])
            except PoolExhausted:
                return
            except StepCancelled:
                continue
            sequence.commit(tokens)
            assert (logits[0] == self.truth.growth(sequence.tokens).logits()).all()
        if capture:
            self.capture(sequence)

    @rule(sequence=sequences)
    def capture(self, sequence: BlockSequence) -> None:
        if sequence.n_tokens:
            point = sequence.capture()
            assert point.n_tokens == sequence.n_tokens == sequence.last_point
            assert point in sequence.points()

    @rule(sequence=sequences, keep=st.floats(0, 1))
    def truncate(self, sequence: BlockSequence, keep: float) -> None:
        n = sequence.truncatable(int(sequence.n_tokens * keep))
        assert sequence.can_truncate(n)
        sequence.truncate(n)
        assert sequence.n_tokens == n >= sequence.last_point

    @rule(sequence=sequences, which=st.floats(0, 0.99))
    def return_to(self, sequence: BlockSequence, which: float) -> None:
        points = sequence.points()
        if points:
            sequence.return_to(points[int(which * len(points))])
            assert sequence.points()[-1].n_tokens == sequence.n_tokens == sequence.last_point

    @rule(sequence=sequences, which=st.floats(0, 0.99))
    def drop_point(self, sequence: BlockSequence, which: float) -> None:
        points = sequence.points()
        if points:
            gone = points[int(which * len(points))]
            sequence.drop_point(gone.n_tokens)
            assert [p.n_tokens for p in sequence.points()] == [p.n_tokens for p in points if p is not gone]

    @rule(target=sequences, sequence=sequences, keep=st.floats(0, 1), end=st.integers(0, 2))
    def adopt(self, sequence: BlockSequence, keep: float, end: int) -> BlockSequence:
        kept = sequence.tokens[: int(sequence.n_tokens * keep)]
        wanted = np.concatenate((kept, np.full(40, end, np.int32)))[:CAPACITY]
        found = self.index.match_point(b"", wanted, lambda point: True)
        assert (found[1].n_tokens if found is not None else 0) == self._farthest(wanted)
        twin = self._keep(BlockSequence(self.index, b"", CAPACITY))
        if found is not None:
            twin.adopt(found[0], wanted, found[1])
            assert twin.n_tokens == found[1].n_tokens
        return twin

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: BlockSequence) -> BlockSequence:
        return self._keep(sequence.fork())

    @rule(sequence=sequences, private=st.booleans())
    def change_privacy(self, sequence: BlockSequence, private: bool) -> None:
        sequence.private = private
        sequence.publish()

    @rule(sequence=sequences)
    def publish_tail(self, sequence: BlockSequence) -> None:
        sequence.publish_tail()

    @rule(sequence=consumes(sequences), forget=st.booleans())
    def clear(self, sequence: BlockSequence, forget: bool) -> None:
        tokens = sequence.tokens.copy()
        sequence.clear()
        self.live.remove(sequence)
        if forget:
            self.index.forget(b"", tokens)

    @rule()
    def evict(self) -> None:
        self.index.evict()

    @rule(target=loans, sequence=sequences)
    def lend(self, sequence: BlockSequence) -> PrefixSnapshot | None:
        if not sequence.n_tokens:
            return None
        points = sequence.points()
        try:
            snapshot = lend(
                self.pool, sequence, sequence.n_tokens, "test", lambda: None, self.runner.clear_rows, points
            )
        except PoolExhausted:
            return None
        assert [p.n_tokens for p in snapshot.points] == [
            p.n_tokens for p in points if p.n_tokens <= len(snapshot.tokens)
        ]
        self.lent.append((snapshot, self._bytes(snapshot)))
        return snapshot

    @rule(snapshot=consumes(loans))
    def release(self, snapshot: PrefixSnapshot | None) -> None:
        if snapshot is not None:
            self.lent = [entry for entry in self.lent if entry[0] is not snapshot]
            snapshot.release()

    @invariant()
    def every_sequence_would_answer_as_its_tokens_say(self) -> None:
        for sequence in self.live:
            run = self._run(sequence, np.zeros(0, np.int32))
            read = self.runner._read(run, sequence.n_tokens, of_step=False)
            assert (read.logits() == self.truth.growth(sequence.tokens).logits()).all()

    @invariant()
    def every_point_is_what_its_tokens_leave(self) -> None:
        for node, tokens in self._nodes():
            start = len(tokens) - node.n_rows
            for row, point in node.points.items():
                assert (point.n_tokens, 1 <= row <= node.n_rows) == (start + row, True)
                self.truth.check(point, tokens)
        for sequence in self.live:
            for point in sequence.own_points:
                self.truth.check(point, sequence.tokens)

    @invariant()
    def bytes_of_points_equal_a_recount(self) -> None:
        found = [point for node, _ in self._nodes() for point in node.points.values()]
        assert self.index.point_bytes == sum({id(p): p.n_bytes for p in found}.values())
        assert all(point.n_nodes == sum(p is point for p in found) for point in found)

    @invariant()
    def no_memory_is_lost(self) -> None:
        tails = self.pool.tails
        assert tails is not None
        found = {id(p): p for node, _ in self._nodes() for p in node.points.values()}
        held = {id(p): p for sequence in self.live for p in sequence.own_points} | found
        # a sequence has its state, one to write, and the one before
        at_most = len({id(p.state) for p in held.values()}) + 3 * len(self.live)
        at_most += sum(len(snapshot.points) for snapshot, _ in self.lent)
        assert tails.n_states <= at_most
        assert tails.n_rings <= len(self.live)

    @invariant()
    def lent_bytes_stand_still(self) -> None:
        for snapshot, seen in self.lent:
            assert self._bytes(snapshot) == seen

    def _keep(self, sequence: BlockSequence) -> BlockSequence:
        self.live.append(sequence)
        return sequence

    def _run(self, sequence: BlockSequence, tokens: np.ndarray) -> Run:
        return Run(tokens, sequence.n_tokens, sequence.tables, "last", sequence.tail)

    def _nodes(self) -> list[tuple[Node, np.ndarray]]:
        return [(node, node_tokens(node)) for node in self.index.nodes()]

    def _farthest(self, wanted: np.ndarray) -> int:
        best = 0
        for node, tokens in self._nodes():
            for n in (point.n_tokens for point in node.points.values()):
                if n <= len(wanted) and (tokens[:n] == wanted[:n]).all():
                    best = max(best, n)
        return best

    def _bytes(self, snapshot: PrefixSnapshot) -> list[bytes]:
        segments = [segment.tobytes() for block in snapshot.blocks for segment in block.segments]
        return segments + [part.tobytes() for point in snapshot.points for part in point.parts]


Memory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMemory = Memory.TestCase
