"""Live bytes stay within the budget; what is used least goes, from the ends inwards, and never a save."""

import time
from pathlib import Path

import numpy as np
import pytest

from store import BlockData, Fingerprint, Outcome, Selection, Store, WriteRequest, chain
from store.insertion import Job, missing_bytes
from store.update import read_ledger, read_usage
from tests.store import kv

MIB = 1 << 20
SCALE = 16
PROMPT_BYTES = 700 * 800  # of 700 tokens at this scale


def test_live_bytes_never_pass_the_budget(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 4 * MIB) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(20):
            kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
            assert store.statistics().live_bytes <= 4 * MIB
        assert store.statistics().evicted > 0
        assert kv.restore(store, root, kv.tokens((19, 700)), SCALE) == 700
        assert kv.restore(store, root, kv.tokens((0, 700)), SCALE) == 0
        assert not kv.problems(store)


def test_what_was_used_lately_stays(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 4 * MIB) as store:
        root = store.register(kv.FINGERPRINT)
        favourite = kv.tokens((100, 700))
        kv.write(store, root, favourite, scale=SCALE)
        for seed in range(20):
            assert kv.restore(store, root, favourite, SCALE) == 700
            kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
        assert kv.restore(store, root, favourite, SCALE) == 700


def test_a_shared_beginning_outlives_its_continuations(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 4 * MIB) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(20):
            kv.write(store, root, kv.tokens((100, 512), (seed, 512)), scale=SCALE)
        assert kv.restore(store, root, kv.tokens((100, 512), (0, 512)), SCALE) == 512


def test_a_save_is_never_evicted(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 4 * MIB) as store:
        root = store.register(kv.FINGERPRINT)
        kept = kv.tokens((100, 700))
        kv.write(store, root, kept, scale=SCALE)
        store.save_manifest("kept", root, kept)
        for seed in range(20):
            kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
        assert kv.restore(store, root, kept, SCALE) == 700
        store.delete_manifest("kept")
        for seed in range(20, 40):
            kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
        assert kv.restore(store, root, kept, SCALE) == 0


def test_what_cannot_fit_is_refused_and_costs_nobody_anything(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 4 * MIB) as store:
        root = store.register(kv.FINGERPRINT)
        kv.write(store, root, kv.tokens((1, 700)), scale=SCALE)
        huge = kv.Offer(store, root, kv.tokens((2, 7000)), scale=SCALE).wait()
        assert huge.outcome is Outcome.FAILED and "budget of 4 MiB" in huge.reason
        assert store.statistics().evicted == 0
        assert kv.restore(store, root, kv.tokens((1, 700)), SCALE) == 700


def test_saves_that_fill_the_budget_make_the_store_refuse_more(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 2 * MIB) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(3):
            kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
            store.save_manifest(str(seed), root, kv.tokens((seed, 700)))
        late = kv.Offer(store, root, kv.tokens((9, 700)), scale=SCALE).wait()
        assert late.outcome is Outcome.FAILED
        assert all(store.manifest(str(seed)).n_restorable == 700 for seed in range(3))
        assert store.statistics().state == "ok"


def test_what_a_look_up_found_is_not_evicted_before_it_is_loaded(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 4 * MIB) as store:
        root = store.register(kv.FINGERPRINT)
        prompt = kv.tokens((100, 700))
        kv.write(store, root, prompt, scale=SCALE)
        match = store.lookup(root, prompt)
        for seed in range(20):
            kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
        for ref in match.blocks:
            wanted = kv.destinations(ref, SCALE)
            assert store.load(ref, wanted)
            kv.check_rows(prompt, ref, wanted, SCALE)


def test_a_clock_set_back_does_not_reorder_what_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kv.open_store(tmp_path, 4 * MIB) as store:
        root = store.register(kv.FINGERPRINT)
        now = [2_000_000_000.0]
        monkeypatch.setattr("store.update.time.time", lambda: now[0])
        kv.write(store, root, kv.tokens((1, 700)), scale=SCALE)
        now[0] = 1_000_000_000.0
        kv.write(store, root, kv.tokens((2, 700)), scale=SCALE)
        environment = store.environment
        ledger = environment.read(lambda txn: read_ledger(environment, txn))
        assert ledger.clock_ms == 2_000_000_000_000
        block = store.lookup(root, kv.tokens((2, 700))).blocks[0].id
        usage = environment.read(lambda txn: read_usage(environment, txn, block))
        assert usage is not None and usage.last_used_ms == 2_000_000_000_000
    with kv.open_store(tmp_path, 4 * MIB) as store:
        assert kv.restore(store, store.register(kv.FINGERPRINT), kv.tokens((1, 700)), SCALE) == 700


def test_too_little_free_space_keeps_the_file_from_growing(tmp_path: Path) -> None:
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(4):
            kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
    with kv.open_store(tmp_path, min_free_bytes=1 << 60) as store:
        root = store.register(kv.FINGERPRINT)
        before = store.statistics().file_bytes
        for seed in range(9, 16):
            kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
        found = store.statistics()
        assert found.state == "degraded" and "the disk has only" in found.reason
        assert found.evicted > 0 and found.file_bytes <= before * 1.05
        assert kv.restore(store, root, kv.tokens((15, 700)), SCALE) == 700


def test_prune_takes_what_was_not_used_since_a_date_or_is_of_one_model(store: Store, root: bytes) -> None:
    other = Fingerprint((*kv.FINGERPRINT.fields, ("salt", b"other")))
    elsewhere = store.register(other)
    prune = store.administration.prune
    kv.write(store, root, kv.tokens((1, 700)))
    kv.write(store, elsewhere, kv.tokens((1, 700)), points=(300, 700))
    kv.write(store, root, kv.tokens((2, 700)))
    store.save_manifest("kept", root, kv.tokens((2, 700)))
    time.sleep(0.01)
    since = int(time.time() * 1000)
    kv.write(store, root, kv.tokens((1, 300), (3, 300)))
    assert prune(selection=Selection(unused_since_ms=since, fingerprint=other.id[:8])) == 5
    assert store.lookup(elsewhere, kv.tokens((1, 700))).n_tokens == 0
    assert prune(selection=Selection(fingerprint=b"nobody")) == 0
    assert prune(selection=Selection(unused_since_ms=since)) == 2
    assert kv.restore(store, root, kv.tokens((1, 300), (3, 300))) == 600
    assert kv.restore(store, root, kv.tokens((1, 700))) == 300
    assert prune(selection=Selection(fingerprint=kv.FINGERPRINT.id[:8])) == 3
    assert kv.restore(store, root, kv.tokens((2, 700))) == 700
    assert not kv.problems(store)


def test_prune_evicts_down_to_a_size(store: Store, root: bytes) -> None:
    for seed in range(4):
        kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
    live = store.statistics().live_bytes
    assert store.administration.prune(down_to=live // 2) > 0
    assert store.statistics().live_bytes <= live // 2
    assert not kv.problems(store)


@pytest.mark.slow
def test_the_file_stays_near_the_budget_over_200_replacements(tmp_path: Path) -> None:
    """Values of other sizes in every cycle, which is what fragments a file."""
    budget = 24 * MIB
    rng = np.random.default_rng(0)
    with kv.open_store(tmp_path, budget) as store:
        root = store.register(kv.FINGERPRINT)
        for seed in range(200):
            kv.write(store, root, kv.tokens((seed, 256)), scale=int(rng.integers(80, 160)))
            assert store.statistics().oldest_reader_s < 5
        assert store.statistics().file_bytes <= 1.5 * budget
        assert not kv.problems(store)


def test_what_was_written_for_a_save_waits_for_its_name(tmp_path: Path) -> None:
    """Other offers that are written in between do not push it out."""
    with kv.open_store(tmp_path, 4 * MIB) as store:
        root = store.register(kv.FINGERPRINT)
        kept = kv.tokens((100, 700))
        kv.write(store, root, kept, "save", scale=SCALE)
        for seed in range(20):
            kv.write(store, root, kv.tokens((seed, 700)), scale=SCALE)
        assert store.statistics().evicted > 0
        store.save_manifest("kept", root, kept)
        assert kv.restore(store, root, kept, SCALE) == 700


def test_what_is_filled_into_known_records_is_made_room_for(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 300))
    first, second = kv.blocks_of(prompt)
    bare = tuple(BlockData(b.index, b.n_rows, b.segments[:1]) for b in (first, second))
    store.offer(WriteRequest(root, prompt, bare, "release", lambda result: None, (kv.point_of(prompt, 300),)))
    assert store.flush(120)
    point = kv.point_of(prompt, 300, logits=True)
    request = WriteRequest(root, prompt, (first, second), "release", lambda result: None, (point,))
    job = Job(request, kv.FINGERPRINT.id, chain.encode_tokens(prompt), request.n_bytes)
    missing = store.environment.read(lambda txn: missing_bytes(store.environment, txn, job))
    assert missing == [part.data.size for part in (first.segments[1], second.segments[1], point.parts[-1])]
