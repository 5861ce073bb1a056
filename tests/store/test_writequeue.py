"""What is dropped when more is offered than can be written: the oldest offer first, a save never."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store import (
    BLOCK,
    BlockData,
    InvalidName,
    Outcome,
    SaveAs,
    Segment,
    Store,
    WriteRequest,
    WriteResult,
    batch,
    writer,
)
from store.insertion import Job
from store.writequeue import Order, WriteQueue
from tests.store import kv


def job(n_bytes: int, why: str = "interval") -> Job:
    blocks = (BlockData(0, 1, (Segment("g", "l", 1, np.zeros(n_bytes, np.uint8)),)),)
    return Job(WriteRequest(b"", kv.tokens((1, 1)), blocks, why, lambda result: None), b"", b"", n_bytes)


def test_the_oldest_offers_make_way() -> None:
    queue = WriteQueue(100)
    first, second, third = job(40), job(40), job(70)
    assert queue.push_job(first) == queue.push_job(second) == []
    assert queue.push_job(third) == [first, second]
    assert queue.n_bytes == 70


def test_saves_and_what_is_being_written_do_not_make_way() -> None:
    queue = WriteQueue(100)
    running, save, late = job(40), job(40, "save"), job(50)
    queue.push_job(running)
    assert queue.head(1) == [running]
    assert queue.push_job(save) == []
    assert queue.push_job(late) == [late]
    assert queue.push_job(job(500, "save")) == []


def test_an_offer_larger_than_the_bound_is_taken_when_nothing_waits() -> None:
    queue = WriteQueue(100)
    large, late = job(500), job(1)
    assert queue.push_job(large) == []
    assert queue.head(1) == [large]
    assert queue.push_job(late) == [late]


def test_batches_end_at_the_bound_and_at_an_order() -> None:
    queue = WriteQueue(1000)
    jobs = [job(40) for _ in range(4)]
    order = Order(lambda update: None)
    for each in jobs[:3]:
        queue.push_job(each)
    queue.push_order(order)
    queue.push_job(jobs[3])
    assert queue.head(60) == jobs[:2]
    assert queue.head(1000) == jobs[:3]
    for each in jobs[:3]:
        queue.remove(each)
    assert queue.has_order
    assert queue.head(1000) is order
    assert queue.head(1000) == [jobs[3]]


def test_a_full_queue_drops_offers_and_counts_them(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, queue_bytes=100_000) as store:
        root = store.register(kv.FINGERPRINT)
        gate = threading.Event()
        store.writer.post(lambda update: gate.wait(60))
        offers = [kv.Offer(store, root, kv.tokens((seed, 700))) for seed in range(8)]
        gate.set()
        results = [offer.wait() for offer in offers]
        dropped = [result for result in results if result.outcome == "dropped"]
        assert dropped and {result.reason for result in dropped} == {"the store's queue is full"}
        assert store.statistics().dropped == len(dropped)
        assert results[-1].outcome == "written"


@pytest.mark.parametrize(("why", "n_commits"), [("release", 2), ("save", 1)])
def test_a_save_waits_for_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, n_commits: int
) -> None:
    monkeypatch.setattr("store.batch.BATCH_S", 60.0)
    block = np.zeros(6 << 20, np.uint8)
    prompt = kv.tokens((1, 6 * BLOCK))
    blocks = tuple(BlockData(i, BLOCK, (Segment("g", "l", 16, block),)) for i in range(6))
    with kv.open_store(tmp_path, 512 << 20) as store:
        root = store.register(kv.FINGERPRINT)
        assert store.flush(120)
        store.offer(WriteRequest(root, prompt, blocks, why, lambda result: None))
        assert store.flush(120)
        assert store.statistics().commits == n_commits
        assert store.lookup(root, prompt).n_tokens == len(prompt)


def test_a_save_has_its_name_with_the_commit_that_completes_it(
    store: Store, root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    sync = store.environment.sync
    monkeypatch.setattr(store.environment, "sync", lambda: (sync(), told.append("on the disk")))
    prompt = kv.tokens((1, 700))
    results: list[WriteResult] = []
    before = store.statistics().commits
    as_ = SaveAs("mine", note="hello", model="tiny")

    def note(result: WriteResult) -> None:
        told.append("settled")
        results.append(result)

    store.offer(WriteRequest(root, prompt, kv.blocks_of(prompt), "save", note, save_as=as_))
    assert store.flush(20)
    assert told == ["on the disk", "settled"]
    assert store.statistics().commits == before + 1
    info = store.manifest("mine").info
    assert [result.saved for result in results] == [info]
    assert (info.note, info.model, info.n_tokens) == ("hello", "tiny", 700)
    assert store.statistics().pinned_bytes == info.n_bytes
    assert not any(ref.id in store.writer._saving for ref in store.lookup(root, prompt).blocks)


def test_what_is_not_all_there_gets_no_name_and_says_why(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 700))
    results: list[WriteResult] = []
    kv.write(store, root, prompt)
    first = store.lookup(root, prompt).blocks[0].id
    store.writer.order(lambda update: update.hollow_block(first), 20)
    last = kv.blocks_of(prompt)[-1:]
    store.offer(WriteRequest(root, prompt, last, "save", results.append, save_as=SaveAs("mine")))
    assert store.flush(20)
    assert results[0].outcome is Outcome.WRITTEN and results[0].saved is None
    assert results[0].reason.startswith("only 0 of 700 tokens are stored")
    assert store.list_manifests() == ()


def test_a_name_that_cannot_be_is_refused_before_anything_is_written(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 300))
    results: list[WriteResult] = []
    request = WriteRequest(root, prompt, kv.blocks_of(prompt), "save", results.append, save_as=SaveAs("a/b"))
    with pytest.raises(InvalidName):
        store.offer(request)
    assert not results and not store.lookup(root, prompt).n_tokens


def test_what_comes_while_a_batch_is_put_goes_into_it(store: Store, root: bytes) -> None:
    """The end of an answer must not wait for the commit of the prompt's."""
    prompt, results = kv.tokens((1, 700)), []
    longer = kv.tokens((1, 700), (2, 200))
    store.offer(WriteRequest(root, longer[:256], kv.blocks_of(longer)[:1], "release", results.append))
    assert store.flush(20)
    before = store.statistics().commits
    put, is_late = batch.put_next, threading.Event()

    def put_slowly(*args: Any) -> int:
        if not is_late.is_set():
            is_late.set()
            store.offer(WriteRequest(root, longer, kv.blocks_of(longer), "save", results.append))
        return put(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "put_next", put_slowly)
        store.offer(WriteRequest(root, prompt, kv.blocks_of(prompt), "release", results.append))
        assert store.flush(20)
    assert [result.outcome for result in results] == [Outcome.WRITTEN] * 3
    assert store.statistics().commits == before + 1
    assert kv.restore(store, root, longer) == len(longer)


@pytest.mark.parametrize("pace", [None, 4.0])
def test_writing_keeps_to_the_pace(store: Store, root: bytes, pace: float | None) -> None:
    prompts = [kv.tokens((seed, 700)) for seed in range(6)]
    for prompt in prompts:
        kv.blocks_of(prompt, 16)
    store.set_pace(0.01)
    store.set_pace(pace)
    started = time.perf_counter()
    written = sum(kv.write(store, root, prompt, scale=16).bytes_written for prompt in prompts)
    elapsed = time.perf_counter() - started
    if pace is None:
        assert elapsed < 60, "the pace before would take minutes"
    else:
        assert elapsed >= 0.8 * (written - 700 * 800) / (pace * 2**20)


def test_a_save_does_not_wait_for_the_pace(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 700))
    store.set_pace(0.01)
    kv.Offer(store, root, kv.tokens((2, 700)), scale=16)
    started = time.perf_counter()
    kv.write(store, root, prompt, "save")
    store.save_manifest("now", root, prompt)
    assert time.perf_counter() - started < 60, "the pace would take minutes"
    store.set_pace(None)


def test_offers_are_given_back_when_their_memory_is_needed_and_saves_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("BATCH_BYTES", "HURRIED_BYTES"):
        monkeypatch.setattr(writer, bound, 1)
    long = kv.tokens((1, 20 * BLOCK))
    with kv.open_store(tmp_path) as store:
        root = store.register(kv.FINGERPRINT)
        write = store.environment.write
        commits, begins = threading.Semaphore(0), threading.Semaphore(0)

        def write_if_allowed(call: Any) -> Any:
            begins.release()
            assert commits.acquire(timeout=60)
            return write(call)

        monkeypatch.setattr(store.environment, "write", write_if_allowed)
        begun = kv.Offer(store, root, long)
        assert begins.acquire(timeout=60)
        while not store.statistics().bytes_written:
            commits.release()
            assert begins.acquire(timeout=60)
        waiting, kept = kv.Offer(store, root, kv.tokens((2, 700))), kv.Offer(store, root, long[:700], "save")
        assert store.recall()
        assert waiting.results and waiting.results[0].outcome == "dropped" and not begun.results
        assert not store.recall(), "nothing was written meanwhile"
        commits.release(1000)
        assert begun.wait().outcome == "dropped"
        assert kept.wait().outcome == "written"
        assert 700 <= store.lookup(root, long).n_tokens < len(long)
        assert not kv.problems(store)
        assert store.recall()
