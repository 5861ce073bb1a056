"""Points are found along a prompt, the farthest first, whatever lies beside them; and only sound ones."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import Outcome, PointData, Segment, Store, WriteRequest, WriteResult, compact_store
from store.parts import part_key
from store.points import thinned
from store.update import Update, read_usage
from tests.store import kv


def positions(store: Store, root: bytes, prompt: kv.Tokens) -> list[int]:
    return [ref.n_tokens for ref in store.lookup(root, prompt).points]


def let_go(store: Store) -> None:
    """Act as if the moment had passed for which look-ups and saves hold what they met."""
    store._pins._until.clear()
    store.writer._saving._until.clear()


@pytest.mark.parametrize("scale", [0, 1], ids=["without rows", "with rows"])
@pytest.mark.parametrize("at", [1, 16, 255, 256, 257, 512, 700])
def test_a_point_anywhere_survives_a_restart(tmp_path: Path, at: int, scale: int) -> None:
    prompt = kv.tokens((1, 700))
    with kv.open_store(tmp_path) as store:
        kv.write(store, store.register(kv.FINGERPRINT), prompt, scale=scale, points=(at,))
        assert not kv.problems(store)
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        assert kv.resume(store, root, prompt, scale) == at
        statistics = store.statistics()
        assert (statistics.n_points, statistics.points_reused) == (1, 1)
        assert statistics.point_bytes > 5_000


@pytest.mark.parametrize(
    ("shared", "expected"),
    [(700, 600), (600, 600), (599, 512), (512, 512), (511, 300), (299, 256), (255, 30), (29, 0)],
)
@pytest.mark.parametrize("scale", [0, 1], ids=["without rows", "with rows"])
def test_a_prompt_resumes_at_the_last_point_before_it_diverges(
    store: Store, root: bytes, shared: int, expected: int, scale: int
) -> None:
    kv.write(store, root, kv.tokens((1, 700)), scale=scale, points=(30, 256, 300, 512, 600))
    prompt = np.concatenate([kv.tokens((1, 700))[:shared], kv.tokens((2, 300)) + 50_000]).astype(np.int32)
    assert kv.resume(store, root, prompt, scale) == expected


def test_all_points_of_a_prompt_are_told_the_farthest_first(store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 700)), points=(30, 256, 300, 512, 600))
    assert positions(store, root, kv.tokens((1, 700))) == [600, 512, 300, 256, 30]


def test_points_of_other_conversations_in_the_same_places_are_not_confused(store: Store, root: bytes) -> None:
    prompts = [kv.tokens((1, 100), (seed, 300)) for seed in range(2, 42)]
    for prompt in prompts:
        kv.write(store, root, prompt, scale=0, points=(100, 150, 300))
    assert store.statistics().n_points == 1 + 2 * len(prompts)
    for prompt in prompts:
        assert positions(store, root, prompt) == [300, 150, 100]
        assert kv.resume(store, root, prompt, 0) == 300


def test_a_stranger_has_no_points(store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 300)), points=(300,))
    assert positions(store, root, kv.tokens((2, 300))) == []
    assert positions(store, root, np.zeros(0, np.int32)) == []


def test_writing_a_point_again_writes_nothing(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 300))
    kv.write(store, root, prompt, points=(100, 300))
    again = kv.write(store, root, prompt, points=(100, 300))
    assert again.bytes_written == 0 and again.bytes_shared > 10_000


def test_logits_that_come_later_join_the_point(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 300))
    kv.write(store, root, prompt, points=(300,))
    assert kv.LOGITS not in store.lookup(root, prompt).points[0].parts
    point = kv.point_of(prompt, 300, logits=True)
    store.offer(WriteRequest(root, prompt, (), "release", lambda result: None, (point,)))
    assert store.flush(120)
    assert kv.LOGITS in store.lookup(root, prompt).points[0].parts
    assert kv.resume(store, root, prompt) == 300
    assert not kv.problems(store)


def test_a_point_without_its_blocks_is_refused(store: Store, root: bytes) -> None:
    results: list[WriteResult] = []
    prompt = kv.tokens((1, 300))
    store.offer(WriteRequest(root, prompt, (), "save", results.append, (kv.point_of(prompt, 300),)))
    assert store.flush(120)
    assert results[0].outcome is Outcome.FAILED and results[0].reason == "block 0 is not stored"
    assert store.statistics().n_points == 0


@pytest.mark.parametrize("at", [(0,), (301,), (200, 100), (100, 100)])
def test_points_that_do_not_fit_the_prompt_are_the_caller_s_error(
    store: Store, root: bytes, at: tuple[int, ...]
) -> None:
    prompt = kv.tokens((1, 300))
    parts = kv.point_of(prompt, 300).parts
    points = tuple(PointData(n_tokens, parts) for n_tokens in at)
    request = WriteRequest(root, prompt, kv.blocks_of(prompt), "release", lambda result: None, points)
    with pytest.raises(ValueError, match="point"):
        store.offer(request)


@pytest.mark.parametrize(
    ("name", "layout_id", "size", "reason"),
    [
        ("other", "state/1", 5_000, "lacks its part other"),
        (kv.STATE, "state/2", 5_000, "has another layout"),
        (kv.STATE, "state/1", 4_999, "has another layout"),
    ],
)
def test_a_point_that_does_not_fit_the_destination_is_a_miss(
    store: Store, root: bytes, name: str, layout_id: str, size: int, reason: str
) -> None:
    kv.write(store, root, kv.tokens((1, 300)), points=(300,))
    ref = store.lookup(root, kv.tokens((1, 300))).points[0]
    loaded = store.load_point(ref, [Segment(name, layout_id, 64, np.zeros(size, np.uint8))])
    assert not loaded and reason in loaded.reason
    assert kv.resume(store, root, kv.tokens((1, 300))) == 300


def damage(store: Store, id_: bytes) -> None:
    key = part_key(id_, 0, 0)

    def body(update: Update) -> None:
        value = np.frombuffer(update.txn.get(key, b"", db=store.environment.dat), np.uint8).copy()
        value[value.size // 2] ^= 1
        update.txn.put(key, value.data, db=store.environment.dat)

    store.writer.order(body, 20)


@pytest.mark.parametrize("saved", [False, True], ids=["automatic", "saved"])
def test_a_damaged_point_gives_way_to_the_next_and_is_mended_by_the_next_offer(
    store: Store, root: bytes, saved: bool
) -> None:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt, points=(300, 600))
    if saved:
        store.save_manifest("x", root, prompt)
    damage(store, store.lookup(root, prompt).points[0].id)
    assert kv.resume(store, root, prompt) == 300
    assert positions(store, root, prompt) == [300]
    assert store.flush(120)
    assert store.statistics().quarantined == 1
    assert not kv.problems(store)
    kv.write(store, root, prompt, points=(300, 600))
    assert kv.resume(store, root, prompt) == 600
    assert store.administration.verify(deep=True).problems == ()


def test_what_fails_its_verification_does_not_count_as_used(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt)
    sound, damaged, _ = store.lookup(root, prompt).blocks
    damage(store, damaged.id)
    assert store.load(sound, kv.destinations(sound))
    assert not store.load(damaged, kv.destinations(damaged))
    kv.write(store, root, kv.tokens((2, 300)))  # uses are written down with the next blocks
    usages = [
        store.environment.read(lambda txn, ref=ref: read_usage(store.environment, txn, ref.id))
        for ref in (sound, damaged)
    ]
    assert [usage.hits for usage in usages if usage is not None] == [1, 0]


def test_a_deep_verification_reads_points(store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 300)), points=(300,))
    ref = store.lookup(root, kv.tokens((1, 300))).points[0]
    assert store.administration.verify(deep=True).problems == ()
    damage(store, ref.id)
    found = store.administration.verify(deep=True)
    assert found.n_points == 1
    assert found.problems == (
        f"point {ref.id.hex()[:16]}: part 0 of segment state does not match its checksum",
    )


def test_points_go_before_the_blocks_they_lie_below(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 768))
    kv.write(store, root, prompt, points=(256, 512, 768))
    let_go(store)
    everything = store.statistics().live_bytes
    assert store.administration.prune(down_to=everything - 1) == 1
    assert positions(store, root, prompt) == [512, 256]
    assert not kv.problems(store)
    let_go(store)
    store.administration.prune(down_to=0)
    assert store.statistics().live_bytes == store.statistics().n_points == 0
    assert not kv.problems(store)


def test_of_one_prompt_eight_points_are_kept_and_the_same_offer_changes_nothing(
    store: Store, root: bytes
) -> None:
    prompt = kv.tokens((1, 3000))
    offered = tuple(range(100, 3001, 100))
    kv.write(store, root, prompt, scale=0, points=offered)
    kept = positions(store, root, prompt)
    assert len(kept) == 8 and kept[0] == 3000 and kept[-1] == 100
    gaps = -np.diff(kept)
    assert gaps.max() <= 2.5 * (2900 / 7)
    again = kv.write(store, root, prompt, scale=0, points=offered)
    assert again.bytes_written == 0
    assert positions(store, root, prompt) == kept
    assert not kv.problems(store)


def test_a_conversation_that_grows_keeps_its_first_and_last_and_saved_points(
    store: Store, root: bytes
) -> None:
    whole = kv.tokens((1, 6000))
    for n_tokens in range(200, 6001, 200):
        kv.write(store, root, whole[:n_tokens], scale=0, points=(n_tokens,))
        if n_tokens == 1000:
            store.save_manifest("early", root, whole[:1000])
    kept = positions(store, root, whole)
    assert {200, 1000, 6000} <= set(kept) and len(kept) == 8
    assert store.manifest("early").n_point == 1000
    assert not kv.problems(store)


@given(
    st.sets(st.integers(1, 5000), max_size=12),
    st.sets(st.integers(1, 5000), max_size=40),
    st.sets(st.integers(1, 5000), max_size=3),
    st.integers(2, 9),
)
def test_thinning_keeps_the_ends_and_what_is_fixed(
    stored: set[int], offered: set[int], fixed: set[int], at_most: int
) -> None:
    kept = thinned(stored, offered, fixed & stored, at_most)
    everything = stored | offered
    assert kept <= everything
    assert (fixed & stored) <= kept
    assert len(kept) <= max(at_most, len(fixed & stored) + 2)
    if everything:
        assert {min(everything), max(everything)} <= kept
    if len(everything) <= at_most:
        assert kept == everything
    assert thinned(kept, offered, fixed & stored, at_most) == kept


def test_a_save_holds_the_point_at_its_end(tmp_path: Path) -> None:
    prompt = kv.tokens((1, 700))
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        kv.write(store, root, prompt, "save", scale=0, points=(300, 700))
        info = store.save_manifest("x", root, prompt)
        assert (info.n_tokens, info.n_point) == (700, 700)
        let_go(store)
        store.administration.prune(down_to=0)
        assert positions(store, root, prompt) == [700]
        assert store.statistics().pinned_bytes == store.statistics().live_bytes == info.n_bytes
        store.rename_manifest("x", "y")
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        manifest = store.manifest("y")
        assert (manifest.n_restorable, manifest.n_point) == (700, 700)
        assert kv.resume(store, root, prompt, 0) == 700
        store.delete_manifest("y")
        let_go(store)
        store.administration.prune(down_to=0)
        assert store.statistics().live_bytes == 0
        assert not kv.problems(store)


def test_a_save_with_a_damaged_point_record_is_still_listed_and_read(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt, points=(300, 700))
    store.save_manifest("x", root, prompt)
    key = store.lookup(root, prompt).points[0].key
    environment = store.environment
    store.writer.order(lambda update: update.txn.put(key, b"x" * 30, db=environment.pnt), 20)
    assert [(info.name, info.n_point) for info in store.list_manifests()] == [("x", 0)]
    manifest = store.manifest("x")
    assert (manifest.n_restorable, manifest.n_point) == (700, 300)
    assert kv.resume(store, root, prompt) == 300
    assert store.flush(120)
    assert not kv.problems(store), "a look-up that meets damage has it repaired"


@pytest.mark.parametrize("scale", [0, 1], ids=["without rows", "with rows"])
def test_a_save_takes_its_point_along_into_a_file(tmp_path: Path, scale: int) -> None:
    prompt = kv.tokens((1, 700))
    with kv.open_store(tmp_path / "a") as store:
        root = store.register(kv.FINGERPRINT)
        kv.write(store, root, prompt, "save", scale=scale, points=(300, 700))
        store.save_manifest("x", root, prompt)
        store.administration.export_save("x", tmp_path / "file")
    with kv.open_store(tmp_path / "b") as store:
        info = store.administration.import_save(tmp_path / "file", expected=kv.FINGERPRINT)
        assert (info.n_tokens, info.n_point) == (700, 700)
        assert kv.resume(store, info.root, prompt, scale) == 700
        assert store.administration.verify(deep=True).problems == ()


@pytest.mark.parametrize("scale", [0, 1], ids=["without rows", "with rows"])
def test_forgetting_a_text_takes_its_points_and_leaves_shared_ones(
    store: Store, root: bytes, scale: int
) -> None:
    kept, gone = kv.tokens((1, 600), (2, 300)), kv.tokens((1, 600), (3, 300))
    for prompt in (kept, gone):
        kv.write(store, root, prompt, scale=scale, points=(100, 256, 560, 700, 768, 900))
    store.administration.forget_prefix(root, gone[:650])
    assert positions(store, root, gone) == [560, 256, 100]
    assert kv.resume(store, root, kept, scale) == 900
    assert positions(store, root, kept) == [900, 768, 700, 560, 256, 100]
    assert not kv.problems(store)
    store.administration.forget_prefix(root, kept[:50])
    statistics = store.statistics()
    assert (statistics.n_points, statistics.n_blocks, statistics.live_bytes) == (0, 0, 0)
    assert not kv.problems(store)


def test_forgetting_a_text_takes_points_whose_leaf_was_evicted(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt, points=(300, 700))
    leaf = store.lookup(root, prompt).blocks[-1]
    store.writer.order(lambda update: update.remove(leaf.id), timeout=60)
    gone = store.administration.forget_text(prompt[:690].tobytes(), lambda ids: ids.tobytes())
    assert gone.n_bytes
    statistics = store.statistics()
    assert (statistics.n_points, statistics.n_blocks) == (0, 0)
    assert not kv.problems(store)


def test_a_text_that_is_not_stored_takes_nothing_along(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt, points=(300, 700))
    longer = np.concatenate([prompt, kv.tokens((2, 5))])
    gone = store.administration.forget_text(longer.tobytes(), lambda ids: ids.tobytes())
    assert (gone.n_blocks, gone.n_bytes) == (0, 0)
    assert positions(store, root, prompt) == [700, 300]


def test_forgetting_a_save_takes_the_points_that_nothing_else_needs(store: Store, root: bytes) -> None:
    kv.write(store, root, kv.tokens((1, 256)), scale=0, points=(200, 256))
    long = kv.tokens((1, 256), (2, 400))
    kv.write(store, root, long, scale=0, points=(200, 256, 512, 656))
    store.save_manifest("long", root, long)
    store.save_manifest("short", root, long[:100])
    store.administration.forget_manifest("long")
    assert not kv.problems(store)
    assert store.statistics().n_points == 1  # at 200, within the block that the other save holds
    store.administration.forget_all()
    assert store.statistics().n_points == 0
    assert not kv.problems(store)


def test_compaction_keeps_points(tmp_path: Path) -> None:
    prompt = kv.tokens((1, 700))
    with kv.open_store(tmp_path) as store:
        kv.write(store, store.register(kv.FINGERPRINT), prompt, scale=0, points=(300, 700))
    compact_store(tmp_path)
    with kv.open_store(tmp_path) as store:
        assert kv.resume(store, store.register(kv.FINGERPRINT), prompt, 0) == 700
        assert not kv.problems(store)


@pytest.mark.parametrize("what", ["usage", "parent", "point"])
def test_repair_derives_what_belongs_to_points_anew(store: Store, root: bytes, what: str) -> None:
    prompt = kv.tokens((1, 700))
    kv.write(store, root, prompt, scale=0, points=(100, 300, 700))
    store.save_manifest("x", root, prompt)
    match = store.lookup(root, prompt)
    environment = store.environment

    def harm(update: Update) -> None:
        if what == "usage":
            update.txn.put(match.points[0].id, b"x" * 30, db=environment.use)
        elif what == "parent":
            update.txn.delete(match.blocks[1].id, db=environment.idx)
        else:
            update.txn.put(match.points[0].key, b"x" * 30, db=environment.pnt)

    store.writer.order(harm, 20)
    assert kv.problems(store)
    store.administration.repair()
    assert not kv.problems(store)
    expected = {"usage": [700, 300, 100], "parent": [100], "point": [300, 100]}[what]
    assert positions(store, root, prompt) == expected
    if what != "parent":
        store.rename_manifest("x", "y")
        kv.write(store, root, prompt, scale=0, points=(700,))
        assert kv.resume(store, root, prompt, 0) == 700
        assert not kv.problems(store)
