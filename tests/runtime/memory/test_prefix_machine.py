"""Sequences over the pool and the prefix index in any order: counts, contents and findings stay true.

Rows are hashes of the prefix, so that the bytes of any block tell whether they belong where they are found.
Those of windows come and go: what a sequence sees is there, and what is there is right.
"""

import ctypes
import hashlib
import mmap
from itertools import pairwise

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from runtime.errors import PoolExhausted
from runtime.memory.layout import BLOCK, TILE, GroupLayout, MemoryLayout
from runtime.memory.pool import BlockPool, Lease
from runtime.memory.prefix import PrefixIndex
from runtime.memory.sequence import BlockSequence

# Few tokens and lengths around the edges of tiles and blocks, so that sequences meet and part often.
RUNS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from((1, 7, 16, 100, 156, 256, 300, 700))), max_size=3
)
LAYOUT = MemoryLayout(
    (
        GroupLayout("rows", "rows", TILE),
        GroupLayout("window", "window", TILE, window=200),
        GroupLayout("chunk", "chunk", TILE, window=512, chunked=True),
    )
)
N_GROUPS = len(LAYOUT.groups)
CAPACITY = 7 * BLOCK
ROOTS = (b"", b"other")


def row_bytes(root: bytes, tokens: np.ndarray) -> np.ndarray:
    """One byte for each position: a hash of everything up to it (in runs of equal tokens, for speed)."""
    out = np.zeros(len(tokens), np.uint8)
    state = hashlib.blake2b(root)
    edges = [0, *(np.flatnonzero(np.diff(tokens)) + 1).tolist(), len(tokens)]
    for start, stop in pairwise(edges):
        if start == stop:
            continue
        state.update(int(tokens[start]).to_bytes(4, "little") + start.to_bytes(4, "little"))
        out[start:stop] = np.frombuffer(state.digest(), np.uint8)[np.arange(start, stop) % 64]
    return out


class Memory(RuleBasedStateMachine):
    sequences = Bundle("sequences")
    leases = Bundle("leases")

    @initialize(n_blocks=st.sampled_from((6, 24)), n_parts=st.integers(10, 36), n_lent=st.integers(0, 8))
    def begin(self, n_blocks: int, n_parts: int, n_lent: int) -> None:
        page = mmap.PAGESIZE
        self.pool, self.lent_bytes = BlockPool(LAYOUT, n_blocks, n_parts * page), n_lent * page
        self.index = PrefixIndex(self.pool)
        self.live: list[BlockSequence] = []
        self.lent: dict[Lease, list[tuple[int, int, list[tuple[int, bytes]]]]] = {}

    @rule(target=sequences, root=st.sampled_from(ROOTS), private=st.booleans())
    def create(self, root: bytes, private: bool) -> BlockSequence:
        return self._keep(BlockSequence(self.index, root, CAPACITY, private))

    @rule(sequence=sequences, runs=RUNS)
    def write(self, sequence: BlockSequence, runs: list[tuple[int, int]]) -> None:
        for token, length in runs:
            n = min(length, CAPACITY - sequence.n_tokens)
            n_tokens, blocks = sequence.n_tokens, sequence.blocks
            try:
                sequence.reserve(n)
            except PoolExhausted:
                assert sequence.n_tokens == n_tokens
                assert len(sequence.blocks) == -(-n_tokens // BLOCK)
                return
            assert sequence.blocks[: n_tokens // BLOCK] == blocks[: n_tokens // BLOCK]
            tokens = np.full(n, token, np.int32)
            rows = row_bytes(sequence.root, np.concatenate((sequence.tokens, tokens)))
            for g, table in enumerate(sequence.tables):
                for position in range(n_tokens, n_tokens + n):
                    address = int(table[position // BLOCK])
                    assert self.pool.in_use(g, address)
                    ctypes.c_uint8.from_address(address + position % BLOCK).value = int(rows[position]) ^ g
            sequence.commit(tokens)

    @rule(sequence=sequences, keep=st.floats(0, 1))
    def truncate(self, sequence: BlockSequence, keep: float) -> None:
        wanted = int(sequence.n_tokens * keep)
        n = sequence.truncatable(wanted)
        for more in range(n + 1, wanted + 1, 37):
            assert not sequence.can_truncate(more)
        sequence.truncate(n)

    @rule(sequence=sequences)
    def publish_tail(self, sequence: BlockSequence) -> None:
        sequence.publish_tail()

    @rule(sequence=sequences, private=st.booleans())
    def change_privacy(self, sequence: BlockSequence, private: bool) -> None:
        sequence.private = private
        sequence.publish()

    @rule(target=sequences, sequence=sequences, mine=RUNS, others=RUNS)
    def fork(
        self, sequence: BlockSequence, mine: list[tuple[int, int]], others: list[tuple[int, int]]
    ) -> BlockSequence:
        twin = self._keep(sequence.fork())
        self.write(sequence, mine)
        self.write(twin, others)
        return twin

    @rule(
        target=sequences,
        sequence=sequences,
        keep=st.floats(0, 1),
        tail=st.integers(0, 2),
        cut=st.floats(0, 1),
    )
    def adopt(self, sequence: BlockSequence, keep: float, tail: int, cut: float) -> BlockSequence:
        wanted = np.concatenate(
            (sequence.tokens[: int(sequence.n_tokens * keep)], np.full(40, tail, np.int32))
        )[:CAPACITY]
        match = self.index.match(sequence.root, wanted)
        assert match.n_tokens == self._longest_indexed(sequence.root, wanted)
        match = match.cut(self.index.resumable(match, int(match.n_tokens * cut)))
        found = BlockSequence(self.index, sequence.root, CAPACITY)
        found.adopt(match, wanted)
        return self._keep(found)

    @rule(target=sequences, sequence=sequences, keep=st.floats(0, 1), others=RUNS)
    def restore(self, sequence: BlockSequence, keep: float, others: list[tuple[int, int]]) -> BlockSequence:
        """As from a store: blocks that have rows of windows only where the end of the prefix sees them."""
        known = [sequence.tokens[: int(sequence.n_tokens * keep)]]
        tokens = np.concatenate(known + [np.full(n, t, np.int32) for t, n in others])[:CAPACITY]
        made = self._keep(BlockSequence(self.index, sequence.root, CAPACITY))
        blocks: list[int] = []
        try:
            for i in range(-(-len(tokens) // BLOCK)):
                unseen = [g for g in LAYOUT.windowed if i < LAYOUT.groups[g].first_block(len(tokens))]
                blocks.append(self.index.allocate(unseen))
        except PoolExhausted:
            for block in blocks:
                self.pool.drop(block)
            return made
        rows = row_bytes(sequence.root, tokens)
        for i, block in enumerate(blocks):
            for g, view in enumerate(self.pool.views(block, BLOCK)):
                if view.size:
                    mine = rows[i * BLOCK : (i + 1) * BLOCK]
                    view[: len(mine)] = mine ^ g
        made.graft(tokens, 0, blocks)
        return made

    @rule(sequence=consumes(sequences))
    def clear(self, sequence: BlockSequence) -> None:
        sequence.clear()
        self.live.remove(sequence)

    @rule(sequence=consumes(sequences))
    def forget(self, sequence: BlockSequence) -> None:
        tokens = sequence.tokens.copy()
        sequence.clear()
        self.live.remove(sequence)
        self.index.forget(sequence.root, tokens)

    @rule()
    def evict(self) -> None:
        self.index.evict()

    @rule(target=leases, sequence=sequences, keep=st.floats(0, 1))
    def lease(self, sequence: BlockSequence, keep: float) -> Lease:
        n_tokens = int(sequence.n_tokens * keep)
        blocks = sequence.blocks[: -(-n_tokens // BLOCK)]
        withheld = self.pool.withheld(blocks, n_tokens, self.lent_bytes)
        lease, rows = sequence.lease(n_tokens, withheld)
        self.lent[lease] = [(block, n, self._seen(block, n, withheld)) for block, n in rows]
        return lease

    @rule(lease=consumes(leases))
    def release(self, lease: Lease) -> None:
        lease.release()
        del self.lent[lease]

    @invariant()
    def counts_equal_a_recount(self) -> None:
        held = [0] * self.pool.n_blocks
        for sequence in self.live:
            for block in sequence.blocks:
                held[block] += 1
        assert held == [self.pool.holders(b) for b in range(self.pool.n_blocks)]
        indexed = [node.block for node in self.index.nodes()]
        assert len(set(indexed)) == len(indexed)
        leased = {block for rows in self.lent.values() for block, _, _ in rows}
        assert {b for b in range(self.pool.n_blocks) if self.pool.leased(b)} == leased
        assert self.pool.n_used == len({b for b, n in enumerate(held) if n} | set(indexed) | leased)

    @invariant()
    def memory_stays_within_its_bounds(self) -> None:
        there = sum(self.pool.resident(g, b) for g in range(N_GROUPS) for b in range(self.pool.n_blocks))
        assert self.pool.n_bytes == there * mmap.PAGESIZE <= self.pool.max_bytes

    @invariant()
    def every_sequence_reads_its_own_rows(self) -> None:
        for sequence in self.live:
            want = row_bytes(sequence.root, sequence.tokens)
            for g, group in enumerate(LAYOUT.groups):
                first = group.first_block(sequence.n_tokens)
                got = [self.pool.views(block, BLOCK)[g] for block in sequence.blocks[first:]]
                assert all(len(view) == BLOCK for view in got)
                rows = np.concatenate([*got, np.zeros(0, np.uint8)])[: sequence.n_tokens - first * BLOCK]
                assert (rows == want[first * BLOCK :] ^ g).all()

    @invariant()
    def every_node_has_the_rows_of_its_tokens(self) -> None:
        for node in self.index.nodes():
            path, root = [node], b""
            while path[-1].parent is not None:
                path.append(path[-1].parent)
            root = path.pop().key
            tokens = np.concatenate([np.frombuffer(n.key, np.int32) for n in reversed(path)])
            want = row_bytes(root, tokens)[-node.n_rows :]
            assert node.end == len(tokens)
            for g, view in enumerate(self.pool.views(node.block, BLOCK)):
                assert view.size or g in LAYOUT.windowed
                assert not view.size or (view[: node.n_rows] == want ^ g).all()
            assert node.n_rows == BLOCK or not node.children

    @invariant()
    def what_was_published_is_found(self) -> None:
        for sequence in self.live:
            if not sequence.private:
                full = sequence.tokens[: sequence.n_tokens // BLOCK * BLOCK]
                assert self.index.match(sequence.root, full).n_tokens == len(full)
        for node in self.index.nodes():
            assert any(node is child for child in node.parent.children)

    @invariant()
    def siblings_are_sorted_and_none_begins_another(self) -> None:
        for node in self.index.nodes():
            keys = node.parent.keys
            assert keys == sorted(keys)
            assert not any(b.startswith(a) for a, b in pairwise(keys))

    @invariant()
    def lent_bytes_stand_still(self) -> None:
        for rows in self.lent.values():
            for block, n_rows, seen in rows:
                for g, data in seen:
                    assert self.pool.views(block, n_rows)[g].tobytes() == data

    def _seen(self, block: int, n_rows: int, withheld: set[tuple[int, int]]) -> list[tuple[int, bytes]]:
        views = enumerate(self.pool.views(block, n_rows, withheld))
        return [(g, view.tobytes()) for g, view in views if view.size]

    def _keep(self, sequence: BlockSequence) -> BlockSequence:
        self.live.append(sequence)
        return sequence

    def _longest_indexed(self, root: bytes, wanted: np.ndarray) -> int:
        best = 0
        for node in self.index.nodes():
            path = [node]
            while path[-1].parent is not None:
                path.append(path[-1].parent)
            if path.pop().key != root:
                continue
            tokens = np.concatenate([np.frombuffer(n.key, np.int32) for n in reversed(path)])
            n = min(len(tokens), len(wanted))
            different = np.flatnonzero(tokens[:n] != wanted[:n])
            best = max(best, int(different[0]) if len(different) else n)
        return best


Memory.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestMemory = Memory.TestCase
