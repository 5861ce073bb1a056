"""What is written is found again, at any length, byte for byte, and nothing else is."""

from pathlib import Path

import numpy as np
import pytest

from store import (
    BlockData,
    Fingerprint,
    Outcome,
    Segment,
    Store,
    StoreError,
    WriteRequest,
    WriteResult,
)
from store.parts import part_key
from tests.store import kv


@pytest.mark.parametrize("length", [1, 15, 16, 17, 255, 256, 257, 511, 512, 700])
def test_a_prompt_of_any_length_survives_a_restart(tmp_path: Path, length: int) -> None:
    prompt = kv.tokens((1, length))
    with kv.open_store(tmp_path) as store:
        kv.write(store, store.register(kv.FINGERPRINT), prompt)
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        assert store.lookup(root, prompt).reason == "all of it is stored"
        assert kv.restore(store, root, prompt) == length


@pytest.mark.parametrize("shared", [0, 1, 50, 255, 256, 300, 511, 512, 550, 699, 700])
def test_a_prompt_that_leaves_a_stored_one_reuses_exactly_what_they_share(
    store: Store, root: bytes, shared: int
) -> None:
    kv.write(store, root, kv.tokens((1, 700)))
    prompt = np.concatenate([kv.tokens((1, 700))[:shared], kv.tokens((2, 300)) + 50_000]).astype(np.int32)
    assert kv.restore(store, root, prompt) == shared


def test_a_shorter_prompt_is_served_from_a_longer_one(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt)
    for length in (1, 100, 256, 400, 699):
        assert kv.restore(store, root, prompt[:length]) == length


def test_the_sibling_with_the_longest_common_prefix_is_chosen(store: Store, root: bytes) -> None:
    base = kv.tokens((1, 256))
    for seed, shared in enumerate((10, 97, 130, 200), start=5):
        branch = np.concatenate([base, kv.tokens((2, 250))[:shared], kv.tokens((seed, 100))])
        kv.write(store, root, branch.astype(np.int32))
    prompt = np.concatenate([base, kv.tokens((2, 250))]).astype(np.int32)
    assert kv.restore(store, root, prompt) == 256 + 200


def test_branches_of_one_conversation_share_its_blocks(store: Store, root: bytes) -> None:
    first = kv.write(store, root, kv.tokens((1, 1024), (2, 256)))
    for seed in (3, 4, 5, 6):
        again = kv.write(store, root, kv.tokens((1, 1024), (seed, 256)))
        assert again.bytes_shared == first.bytes_written * 4 // 5
    assert store.statistics().n_blocks == 4 + 5


def test_a_second_save_of_the_same_prompt_writes_nothing(store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 700)))
    again = kv.write(store, root, kv.tokens((1, 700)))
    assert (again.bytes_written, again.n_tokens) == (0, 700)


def test_a_leaf_gives_way_to_what_continues_it(store: Store, root: bytes) -> None:
    for length in (300, 310, 400, 512, 530):
        kv.write(store, root, kv.tokens((1, 600))[:length])
    assert store.statistics().n_blocks == 3
    assert not kv.problems(store)


def test_a_leaf_that_a_longer_record_covers_is_not_written(store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 512)))
    shorter = kv.write(store, root, kv.tokens((1, 512))[:400])
    assert (shorter.bytes_written, store.statistics().n_blocks) == (0, 2)


def test_prefixes_of_different_fingerprints_never_meet(store: Store, root: bytes) -> None:
    salted = store.register(Fingerprint((*kv.FINGERPRINT.fields, ("salt", b"someone else"))))
    kv.write(store, root, kv.tokens((1, 300)))
    assert store.lookup(salted, kv.tokens((1, 300))).n_tokens == 0


def test_look_up_says_why_it_ends(store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 300)))
    assert store.lookup(root, kv.tokens((2, 300))).reason == "nothing is stored from token 0 on"
    assert store.lookup(root, kv.tokens((1, 512))).reason == "the stored text differs or ends at token 300"
    assert store.lookup(root, kv.tokens((1, 0))).n_tokens == 0


def test_a_block_whose_parent_is_not_stored_is_refused(store: Store, root: bytes) -> None:
    result = kv.Offer(store, root, kv.tokens((1, 700)), first=1).wait()
    assert (result.outcome, result.reason) == (Outcome.FAILED, "block 0 is not stored")
    assert store.statistics().n_blocks == 0


def test_blocks_may_be_offered_bit_by_bit(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt[:256])
    assert kv.Offer(store, root, prompt, first=1).wait().n_tokens == 700
    assert kv.restore(store, root, prompt) == 700


def test_a_cache_group_that_is_missing_can_be_added_later(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 256))
    (whole,) = kv.blocks_of(prompt)
    _offer(store, root, prompt, BlockData(0, 256, whole.segments[:1]))
    (ref,) = store.lookup(root, prompt).blocks
    assert ref.groups == {"full"}
    assert store.load(ref, kv.destinations(ref)).reason == "block 0 lacks the cache group window"
    _offer(store, root, prompt, whole)
    assert kv.restore(store, root, prompt) == 256
    assert not kv.problems(store)


def test_a_leaf_with_more_cache_groups_than_what_continues_it_stays(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 310))
    kv.write(store, root, prompt[:300])
    _, second = kv.blocks_of(prompt)
    _offer(store, root, prompt, BlockData(1, 54, second.segments[:1]))
    assert store.lookup(root, prompt).blocks[1].groups == {"full"}
    assert kv.restore(store, root, prompt[:300]) == 300
    assert not kv.problems(store)


def test_another_layout_is_refused_and_not_called_damage(store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 256)))
    (ref,) = store.lookup(root, kv.tokens((1, 256))).blocks
    for wrong in (
        Segment("full", "q8_0/1", 704, np.empty(704 * 16, np.uint8)),
        Segment("full", "f16/1", 704, np.empty(704 * 16 + 1, np.uint8)),
    ):
        assert store.load(ref, [wrong]).reason == "block 0 has another layout"
    assert store.statistics().quarantined == 0


@pytest.mark.parametrize("unit_bytes", [1000, 70_000, 1_048_560, 3_000_000])
def test_first_rows_of_a_block_of_many_parts_are_verified_alone(
    store: Store, root: bytes, unit_bytes: int
) -> None:
    n_tiles = 1 if unit_bytes > 1_000_000 else 16
    prompt = kv.tokens((1, n_tiles * 16))
    data = np.random.default_rng(0).integers(0, 256, unit_bytes * n_tiles).astype(np.uint8)
    _offer(store, root, prompt, BlockData(0, len(prompt), (Segment("g", "l", unit_bytes, data),)))
    (ref,) = store.lookup(root, prompt).blocks
    for n_bytes in {unit_bytes, unit_bytes * n_tiles, unit_bytes * n_tiles // 2, 1}:
        wanted = np.zeros(n_bytes, np.uint8)
        assert store.load(ref, [Segment("g", "l", unit_bytes, wanted)])
        assert np.array_equal(wanted, data[:n_bytes])


def test_offers_are_settled_once_whatever_happens(tmp_path: Path) -> None:
    store = kv.open_store(tmp_path)
    root = store.register(kv.FINGERPRINT)
    offers = [kv.Offer(store, root, kv.tokens((seed, 300))) for seed in range(40)]
    store.close(deadline=0.0)
    late = kv.Offer(store, root, kv.tokens((99, 300)))
    for offer in offers:
        offer.wait()
    assert late.wait().outcome is Outcome.DROPPED
    assert all(len(offer.results) == 1 for offer in (*offers, late))


def test_an_owner_that_fails_to_take_its_offer_back_harms_nobody(store: Store, root: bytes) -> None:
    def fail(result: WriteResult) -> None:
        raise RuntimeError("owner")

    prompt = kv.tokens((1, 300))
    store.offer(WriteRequest(root, prompt, kv.blocks_of(prompt), "release", fail))
    assert store.flush(120)
    assert kv.restore(store, root, prompt) == 300


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        (BlockData(0, 200, ()),),
        (BlockData(1, 256, ()),),
        (BlockData(1, 44, ()), BlockData(0, 256, ())),
        (BlockData(0, 256, (Segment("g", "l", 16, np.zeros((2, 16), np.uint8)),)),),
        (BlockData(0, 256, (Segment("g", "l", 16, np.zeros(32, np.uint8)[::2]),)),),
        (BlockData(0, 256, (Segment("g", "l", 0, np.zeros(16, np.uint8)),)),),
        (BlockData(0, 256, (Segment("g", "l", 16, np.zeros(4, np.float32)),)),),
        (
            BlockData(
                0,
                256,
                (Segment("g", "l", 1, np.ones(1, np.uint8)), Segment("g", "l", 1, np.ones(1, np.uint8))),
            ),
        ),
    ],
)
def test_malformed_offers_are_the_caller_s_error(
    store: Store, root: bytes, blocks: tuple[BlockData, ...]
) -> None:
    with pytest.raises(ValueError):
        store.offer(WriteRequest(root, kv.tokens((1, 300)), blocks, "x", lambda result: None))


def test_an_unregistered_root_is_the_caller_s_error(store: Store) -> None:
    with pytest.raises(ValueError, match="not registered"):
        kv.Offer(store, b"r" * 32, kv.tokens((1, 300)))


def test_a_closed_store_answers_with_misses(tmp_path: Path) -> None:
    store = kv.open_store(tmp_path)
    root = store.register(kv.FINGERPRINT)
    kv.write(store, root, kv.tokens((1, 300)))
    (ref, _) = store.lookup(root, kv.tokens((1, 300))).blocks
    store.close()
    store.close()
    assert store.lookup(root, kv.tokens((1, 300))).reason == "the store is closed"
    assert not store.load(ref, kv.destinations(ref))
    assert not store.post(lambda: None)
    assert store.statistics().state == "off"
    with pytest.raises(StoreError):
        store.save_manifest("x", root, kv.tokens((1, 300)))


def test_statistics_count_what_happened(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 300))
    kv.restore(store, root, prompt)
    written = kv.write(store, root, prompt)
    kv.restore(store, root, prompt)
    kv.restore(store, root, kv.tokens((1, 280), (2, 9)))
    found = store.statistics()
    assert (found.lookups_miss, found.lookups_hit, found.lookups_partial) == (1, 1, 1)
    assert found.tokens_reused == 300 + 280
    assert found.bytes_written == written.bytes_written > 0
    assert (found.state, found.queue_bytes, found.dropped, found.failed) == ("ok", 0, 0, 0)
    assert found.n_blocks == 2 and found.live_bytes > written.bytes_written


def _offer(store: Store, root: bytes, prompt: kv.Tokens, block: BlockData) -> None:
    results: list[WriteResult] = []
    store.offer(WriteRequest(root, prompt, (block,), "release", results.append))
    assert store.flush(120)
    assert results[0].outcome is Outcome.WRITTEN, results


@pytest.mark.parametrize("damaged", [None, 0, 3, 6])
@pytest.mark.parametrize("at_once", [1, 64 << 20], ids=["one by one", "at once"])
def test_many_blocks_are_loaded_up_to_the_first_damaged_one(
    store: Store, root: bytes, damaged: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.reading._AT_ONCE_BYTES", at_once)
    prompt = kv.tokens((1, 1700))
    kv.write(store, root, prompt)
    match = store.lookup(root, prompt)
    if damaged is not None:
        ref = match.blocks[damaged]
        zeros = bytes(kv.segment_bytes(prompt, ref.index, ref.n_rows, 0).size)
        dat = store.environment.dat
        store.writer.order(lambda update: update.txn.put(part_key(ref.id, 0, 0), zeros, db=dat), 20)
    wanted = [(ref, kv.destinations(ref)) for ref in match.blocks]
    n_loaded, reason = store.load_all(wanted)
    assert n_loaded == (7 if damaged is None else damaged)
    assert reason == "" if damaged is None else "does not match its checksum" in reason
    for ref, destinations in wanted[:n_loaded]:
        kv.check_rows(prompt, ref, destinations)
    assert store.load_all([]) == (0, "")
