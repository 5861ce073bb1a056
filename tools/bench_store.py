"""`emberd bench --store`: what the store costs and saves, as ratios to plain files and to computing anew.

Single figures of a shared machine mean little: each row compares two things of the same run, the median of
rounds in alternating order. Half of the rows use the store alone, half a daemon in a process of its own.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from runtime.kernels.summed_copy import SummedCopy
from store import BLOCK, BlockData, Fingerprint, Segment, Store, WriteRequest, WriteResult
from tools.bench_daemon import daemon_rows, drop_cache, latency_rows
from tools.bench_http import http_rows
from tools.bench_slots import slot_rows

ROUNDS = 5
TOKEN_BYTES = 23_040  # of SmolLM2-135M with f16 keys and values
N_TOKENS = 4096
LONG_PROMPT = 131_072
REPLACE_CYCLES = 200
_MIB = 1 << 20
_FINGERPRINT = Fingerprint((("schema", 1), ("weights", b"bench")))

Bytes = npt.NDArray[np.uint8]
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Row:
    """One target: what was seen in its unit, and the bar, which is a floor or a ceiling."""

    name: str
    seen: float
    unit: str
    bar: float
    is_floor: bool
    details: str = ""

    @property
    def met(self) -> bool:
        return self.seen >= self.bar if self.is_floor else self.seen <= self.bar


def run(args: argparse.Namespace) -> int:
    """Print the table, or JSON with `-o json`; 0 also when a bar was missed: that is a figure like others."""
    rows: list[Row] = []
    with _folder(args.store_path) as folder:
        for row in _latency(args, folder) if args.daemon else _rows(args, folder):
            rows.append(row)
            print(f"{row.name}: {_shown(row)}", file=sys.stderr)
    if args.output == "json":
        print(json.dumps([asdict(row) | {"met": row.met} for row in rows], indent=2))
    else:
        print("\n".join(_table(rows)))
    return 0


def _rows(args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    yield from write_rows(folder / "write")
    yield from read_rows(folder / "read")
    yield lookup_row(folder / "look-up")
    yield replace_row(folder / "replace")
    for figure in daemon_rows(args.model, folder / "daemon", args.threads):
        yield Row(*figure)
    if args.against:
        for figure in slot_rows(args.model, folder / "slots", args.threads, args.against):
            yield Row(*figure)


def _latency(args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    for figure in latency_rows(args.model, folder / "latency", args.threads):
        yield Row(*figure)
    for figure in http_rows(args.model, folder / "http", args.threads, args.against):
        yield Row(*figure)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="emberd-bench-", dir=given))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _table(rows: list[Row]) -> Iterator[str]:
    yield "| measure | seen | bar | | |"
    yield "| --- | ---: | ---: | --- | --- |"
    for row in rows:
        bar = f"{'≥' if row.is_floor else '≤'} {row.bar:g} {row.unit}"
        yield f"| {row.name} | {_shown(row)} | {bar} | {'met' if row.met else 'missed'} | {row.details} |"


def _shown(row: Row) -> str:
    return f"{row.seen:.3g} {row.unit}" if row.seen < 100 else f"{row.seen:.0f} {row.unit}"


def _prompt(seed: int, n_tokens: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 49_000, n_tokens).astype(np.int32)


def _blocks(prompt: Tokens, block: Bytes) -> tuple[BlockData, ...]:
    """Whole blocks of equal bytes: what they hold does not matter to a store that never looks."""
    return tuple(
        BlockData(i, BLOCK, (Segment("kv", "bench/1", TOKEN_BYTES * 16, block),))
        for i in range(len(prompt) // BLOCK)
    )


def _open(folder: Path, budget_bytes: int = 8 << 30) -> tuple[Store, bytes]:
    store = Store.open(folder, budget_bytes=budget_bytes, min_free_bytes=0, copy=SummedCopy())
    return store, store.register(_FINGERPRINT)


def _write(
    store: Store, root: bytes, prompt: Tokens, blocks: tuple[BlockData, ...], why: str = "save"
) -> WriteResult:
    results: list[WriteResult] = []
    store.offer(WriteRequest(root, prompt, blocks, why, results.append))
    store.flush(600)
    return results[0]


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _write_raw(path: Path, data: Bytes, n: int) -> None:
    with path.open("wb") as file:
        for _ in range(n):
            file.write(data.data)
        file.flush()
        os.fsync(file.fileno())


def write_rows(folder: Path) -> Iterator[Row]:
    """Saving until it is durable against `write` and `fsync`; offering; saving the same again."""
    block = np.random.default_rng(0).integers(0, 255, TOKEN_BYTES * BLOCK, dtype=np.uint8)
    store, root = _open(folder)
    n_blocks = N_TOKENS // BLOCK
    raw, saved, offered = [], [], []
    prompts = [_prompt(i, N_TOKENS) for i in range(ROUNDS)]
    requests = [
        WriteRequest(root, prompt, _blocks(prompt, block), "bench", lambda result: None) for prompt in prompts
    ]

    def save(i: int) -> WriteResult:
        prompt = _prompt(i, N_TOKENS)
        result = _write(store, root, prompt, _blocks(prompt, block))
        store.save_manifest(f"bench-{i}", root, prompt)
        return result

    def offer(i: int) -> None:
        store.offer(requests[i])

    with store:
        save(ROUNDS)
        for i in range(ROUNDS):
            for what in ("raw", "save") if i % 2 else ("save", "raw"):
                if what == "raw":
                    raw.append(_timed(partial(_write_raw, folder / f"raw{i}", block, n_blocks)))
                else:
                    saved.append(_timed(partial(save, i)))
            offered.append(_timed(partial(offer, i)))
            store.flush(60)
        again = save(0)
        ratio = median(raw) / median(saved)
        mib = N_TOKENS * TOKEN_BYTES / _MIB
        details = f"{mib / median(saved):.0f} against {mib / median(raw):.0f} MiB/s"
        yield Row("save until durable / write + fsync", ratio, "x", 0.4, True, details)
        share = 100 * again.bytes_written / again.bytes_shared
        yield Row("second save of the same prompt, bytes", share, "%", 1, False)
        yield Row(f"offering {N_TOKENS} tokens, engine thread", median(offered) * 1e3, "ms", 1, False)
        size = store.statistics().file_bytes / _MIB
    opened = []
    for _ in range(3):
        begin = time.perf_counter()
        store, _ = _open(folder)
        opened.append(time.perf_counter() - begin)
        store.close()
    yield Row("start-up after a clean stop", median(opened) * 1e3, "ms", 200, False, f"{size:.0f} MiB")


def read_rows(folder: Path) -> Iterator[Row]:
    """Restoring, checksums included, against one `readinto` of the same bytes."""
    block = np.random.default_rng(0).integers(0, 255, TOKEN_BYTES * BLOCK, dtype=np.uint8)
    prompt = _prompt(1, N_TOKENS)
    raw, whole = folder / "raw", np.empty(N_TOKENS * TOKEN_BYTES, np.uint8)
    store, root = _open(folder)
    _write(store, root, prompt, _blocks(prompt, block))
    store.close()
    _write_raw(raw, block, N_TOKENS // BLOCK)

    def read_raw() -> None:
        with raw.open("rb", buffering=0) as file:
            done = 0
            while done < whole.size:
                done += file.readinto(whole[done:].data) or whole.size

    def restore() -> None:
        match = store.lookup(root, prompt)
        parts = zip(match.blocks, whole.reshape(len(match.blocks), -1), strict=True)
        wanted = [(ref, [Segment("kv", "bench/1", TOKEN_BYTES * 16, part)]) for ref, part in parts]
        if store.load_all(wanted) != (len(wanted), ""):
            raise OSError("the store lost a block of the benchmark")

    for cold, bar in ((False, 0.5), (True, 0.35)):
        seconds: dict[str, list[float]] = {"raw": [], "store": []}
        for i in range(ROUNDS):
            for what in ("raw", "store") if i % 2 else ("store", "raw"):
                if what == "store":
                    if cold:
                        drop_cache(folder / "store" / "data.mdb")
                    store, root = _open(folder)
                    if not cold:
                        restore()
                    seconds["store"].append(_timed(restore))
                    store.close()
                else:
                    if cold:
                        drop_cache(raw)
                    else:
                        read_raw()
                    seconds["raw"].append(_timed(read_raw))
        gib = whole.size / (1 << 30)
        speeds = {what: gib / median(times) for what, times in seconds.items()}
        details = f"{speeds['store']:.2f} against {speeds['raw']:.2f} GiB/s"
        name = f"restore, {'cold' if cold else 'warm'} / readinto"
        yield Row(name, speeds["store"] / speeds["raw"], "x", bar, True, details)


def lookup_row(folder: Path) -> Row:
    """Finding all of a very long prompt; its blocks are tiny, since no look-up reads them.

    Only the CPU works here, so the quickest of many rounds is what it takes.
    """
    tiny = np.zeros(16, np.uint8)
    prompt = _prompt(2, LONG_PROMPT)
    store, root = _open(folder)
    with store:
        _write(store, root, prompt, _blocks(prompt, tiny))
        seconds = [_timed(lambda: store.lookup(root, prompt)) for _ in range(20)]
        if store.lookup(root, prompt).n_tokens != LONG_PROMPT:
            raise OSError("the store lost a block of the benchmark")
    return Row(f"look-up of {LONG_PROMPT} tokens", min(seconds) * 1e3, "ms", 10, False)


def replace_row(folder: Path) -> Row:
    """The file after many prompts, each of which pushes out an older one of another size."""
    budget = 192 * _MIB
    block = np.random.default_rng(0).integers(0, 255, TOKEN_BYTES * BLOCK, dtype=np.uint8)
    store, root = _open(folder, budget)
    with store:
        for i in range(REPLACE_CYCLES):
            prompt = _prompt(i, BLOCK * (2 + i % 2))
            _write(store, root, prompt, _blocks(prompt, block), "bench")
        statistics = store.statistics()
    details = f"{statistics.evicted} blocks evicted"
    return Row(
        f"file / budget, {REPLACE_CYCLES} replace cycles",
        statistics.file_bytes / budget,
        "x",
        1.5,
        False,
        details,
    )
