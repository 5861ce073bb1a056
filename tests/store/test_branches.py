"""The sorted branches give the same answer as comparing with every child."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from store import branches, chain
from store.environment import Environment, Txn

PARENT = b"p" * 32
STEMS = st.sampled_from((0, 1, 2, 90, 95, 96, 97, 120, 191, 192, 193, 255))
ELEMENTS = st.builds(
    lambda stem, tail: ([7] * stem + tail)[:256], STEMS, st.lists(st.integers(0, 2), max_size=40)
).filter(bool)


def _encode(ids: list[int]) -> bytes:
    return chain.encode_tokens(np.array(ids, np.int64))


@settings(max_examples=150, deadline=None)
@given(st.lists(ELEMENTS, max_size=25), ELEMENTS, st.integers(0, 3), st.integers(0, 30))
def test_nearest_equals_comparing_with_every_child(
    children: list[list[int]], prompt: list[int], unusable: int, removed: int
) -> None:
    records = {chain.block_id(PARENT, _encode(ids)): _encode(ids) for ids in children}
    gone = dict(list(records.items())[:removed])
    kept = {block: elements for block, elements in records.items() if block not in gone}
    avoided = set(list(kept)[:unusable])
    wanted = _encode(prompt)
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(Path(folder), create=True)

        def build(txn: Txn) -> None:
            branches.insert(txn, environment.kid, b"q" * 32, wanted, b"other" * 6 + b"!!")
            for block, elements in records.items():
                branches.insert(txn, environment.kid, PARENT, elements, block)
            for block, elements in gone.items():
                branches.remove(txn, environment.kid, PARENT, elements, block)

        environment.write(build)
        found = environment.read(
            lambda txn: branches.nearest(txn, environment.kid, PARENT, wanted, lambda b: b not in avoided)
        )
        listed = environment.read(lambda txn: branches.children(txn, environment.kid, PARENT))
        environment.close(1)
    common = {b: chain.common_positions(e, wanted) for b, e in kept.items() if b not in avoided}
    best = max(common.values(), default=0)
    assert sorted(listed) == sorted(kept)
    if best == 0:
        assert found is None
    else:
        assert found is not None
        assert found[1] == best == common[found[0]]
