"""Power loss in the middle of a commit: some of its pages are on the disk, in any order.

A commit writes its data pages, waits for them, then writes one meta page. So before the wait any subset of
the new pages may be there, torn in halves, under the old meta page. The store must then be that of the commit
before.
"""

import random
from pathlib import Path

import pytest

from tests.store import kv
from tests.store.test_damage import PAGE, outcome


def commits(folder: Path) -> tuple[bytes, bytes]:
    """The data file before and after one more prompt was written and another one evicted."""
    with kv.open_store(folder) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(3):
            kv.write(store, root, kv.tokens((1, 300), (seed, 400)), scale=8)
        store.administration.forget_prefix(root, kv.tokens((1, 300), (2, 400)))
        store.environment.sync()
        before = (folder / "store" / "data.mdb").read_bytes()
        kv.write(store, root, kv.tokens((1, 300), (3, 400)), scale=8)
        return before, (folder / "store" / "data.mdb").read_bytes()


def torn(before: bytes, after: bytes, rng: random.Random) -> bytes:
    """`before` with some of the pages of `after`, a few of them half written, and the old meta pages."""
    length = rng.choice((len(before), len(after)))
    found = bytearray(before.ljust(length, b"\0")[:length])
    for at in range(2 * PAGE, length, PAGE):
        if rng.random() < 0.5:
            end = at + (PAGE // 2 if rng.random() < 0.2 else PAGE)
            found[at:end] = after[at:end]
    return bytes(found)


@pytest.mark.parametrize("trials", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_torn_commit_leaves_the_one_before(tmp_path: Path, trials: int) -> None:
    before, after = commits(tmp_path / "made")
    rng = random.Random(trials)
    expected = outcome(tmp_path / "before", before, claim_clean=False)
    assert expected.startswith("2000 of 2800, 0 rebuilt")
    for _ in range(trials):
        assert outcome(tmp_path / "torn", torn(before, after, rng), claim_clean=False) == expected
