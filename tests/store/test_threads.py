"""Who may do what on which thread: a write transaction on the wrong one would hang the next for ever."""

import ast
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import trio

import store as package
from store import Store, StoreError
from store.update import run_update
from tests.store import kv

SOURCES = sorted(Path(package.__file__).parent.glob("*.py"))


def _calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def test_transactions_begin_in_one_file_only() -> None:
    begins = {path.name for path in SOURCES for call in _calls(path) if _name(call) == "begin"}
    assert begins == {"environment.py"}


def test_the_map_is_never_resized_and_nothing_is_copied_through_bytes_objects() -> None:
    """`set_mapsize` makes every view fatal; `tobytes` of KV holds the interpreter lock all the while."""
    called = {(path.name, _name(call)) for path in SOURCES for call in _calls(path)}
    assert not {entry for entry in called if entry[1] == "set_mapsize"}
    assert {name for name, call in called if call == "tobytes"} <= {"chain.py"}


def test_an_environment_is_opened_with_what_was_measured() -> None:
    (call,) = [
        call
        for path in SOURCES
        for call in _calls(path)
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "lmdb.open"
    ]
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert options["lib_version"] == "0"
    assert options["readahead"] == "True"
    assert options["metasync"] == "False"
    assert {"sync", "writemap", "map_async", "lock"}.isdisjoint(options)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_a_write_on_another_thread_is_refused_at_once(store: Store, root: bytes) -> None:
    with pytest.raises(StoreError, match="writer thread"):
        run_update(store.environment, lambda update: None)
    kv.write(store, root, kv.tokens((1, 300)))


def test_writing_goes_on_while_trio_s_workers_are_busy(store: Store, root: bytes) -> None:
    """With a write transaction on trio's cached workers, the second of two writes hung (measured)."""

    async def write(seed: int) -> None:
        await trio.to_thread.run_sync(kv.write, store, root, kv.tokens((seed, 300)))

    async def main() -> None:
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for seed in range(8):
                    nursery.start_soon(write, seed)
                    nursery.start_soon(trio.to_thread.run_sync, time.sleep, 0.05)

    trio.run(main)
    assert store.statistics().n_blocks == 16


def test_many_threads_may_look_up_load_and_offer_at_once(store: Store, root: bytes) -> None:
    failures: list[BaseException] = []

    def use(seed: int) -> None:
        try:
            for n in range(6):
                prompt = kv.tokens((1, 300), (seed, 100 + n))
                kv.write(store, root, prompt)
                assert kv.restore(store, root, prompt) == len(prompt)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not kv.problems(store)


def test_restores_race_evictions_without_a_wrong_byte(tmp_path: Path) -> None:
    with kv.open_store(tmp_path, 3 << 20) as store:
        root = store.register(kv.FINGERPRINT)
        stop = threading.Event()

        def churn() -> None:
            seed = 0
            while not stop.is_set():
                seed += 1
                kv.Offer(store, root, kv.tokens((seed % 9, 700)), scale=16).wait()

        writer = threading.Thread(target=churn)
        writer.start()
        try:
            begun = time.monotonic()
            found: list[int] = []
            while (seconds := time.monotonic() - begun) < 3 or (not any(found) and seconds < 60):
                found.append(kv.restore(store, root, kv.tokens((len(found) % 9, 700)), 16))
        finally:
            stop.set()
            writer.join(30)
        assert any(found)
        assert store.statistics().quarantined == 0
        assert not kv.problems(store)


def test_calls_on_the_reader_run_in_order_and_survive_a_failure(store: Store) -> None:
    seen: list[int] = []
    done = threading.Event()
    store.post(lambda: seen.append(1))
    store.post(lambda: 1 // 0)
    store.post(lambda: seen.append(2))
    store.post(done.set)
    assert done.wait(60)
    assert seen == [1, 2]


def test_a_restore_does_not_wait_for_a_slow_commit(
    store: Store, root: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = kv.tokens((1, 300))
    kv.write(store, root, prompt)
    entered, leave = threading.Event(), threading.Event()

    def hold(update: object) -> None:
        entered.set()
        assert leave.wait(120)

    store.writer.post(hold)
    assert entered.wait(60)
    restored: list[int] = []
    store.post(lambda: restored.append(kv.restore(store, root, prompt)))
    deadline = time.monotonic() + 60
    while not restored and time.monotonic() < deadline:
        time.sleep(0.01)
    leave.set()
    assert restored == [300]


def test_a_forked_child_cannot_touch_the_store(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 300))
    kv.write(store, root, prompt)
    pid = os.fork()
    if pid == 0:
        answers = [
            store.lookup(root, prompt).n_tokens == 0,
            store.statistics().state == "off",
            offer_is_dropped(store, root, prompt),
        ]
        os._exit(0 if all(answers) else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    kv.write(store, root, kv.tokens((2, 300)))
    assert kv.restore(store, root, prompt) == 300


def offer_is_dropped(store: Store, root: bytes, prompt: kv.Tokens) -> bool:
    offer = kv.Offer(store, root, prompt)
    return bool(offer.results) and offer.results[0].outcome == "dropped"


def test_offering_costs_the_engine_s_thread_next_to_nothing(store: Store, root: bytes) -> None:
    prompt = kv.tokens((1, 8192))
    blocks = kv.blocks_of(prompt)
    best = min(_time_to_offer(store, root, prompt, blocks) for _ in range(20))
    assert best < 0.005


def _time_to_offer(
    store: Store, root: bytes, prompt: kv.Tokens, blocks: tuple[package.BlockData, ...]
) -> float:
    request = package.WriteRequest(root, prompt, blocks, "interval", lambda result: None)
    started = time.perf_counter()
    store.offer(request)
    return time.perf_counter() - started


@pytest.mark.slow
def test_a_ticker_keeps_its_pace_beside_a_busy_writer(store: Store, root: bytes) -> None:
    """Copying 145 MiB through `bytes()` made a 1 ms tick 163 ms late; numpy and LMDB hold no lock."""
    stop = threading.Event()

    def churn() -> None:
        seed = 0
        while not stop.is_set():
            seed += 1
            kv.Offer(store, root, kv.tokens((seed % 3, 512)), scale=200).wait()
            store.administration.prune(down_to=0)

    for seed in range(3):
        kv.blocks_of(kv.tokens((seed, 512)), 200)
    idle = _lateness()
    writer = threading.Thread(target=churn)
    writer.start()
    try:
        busy = _lateness()
    finally:
        stop.set()
        writer.join(60)
    assert np.quantile(busy, 0.99) <= np.quantile(idle, 0.99) + 0.02


def _lateness() -> list[float]:
    late = []
    until = time.perf_counter() + 3
    while (started := time.perf_counter()) < until:
        time.sleep(0.001)
        late.append(time.perf_counter() - started - 0.001)
    return late
