"""`emberd bench`: prefill and decode speed in llama-bench's table."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from runtime.evaluate import LinearSequence
from runtime.kernels.kvtypes import KV_TYPES
from runtime.model import LoadedModel, ModelOptions, load_model
from tools import bench_store


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("-p", "--n-prompt", type=_sizes, default=[512], help="prompt sizes, comma separated")
    parser.add_argument("-n", "--n-gen", type=_sizes, default=[128], help="numbers of generated tokens")
    parser.add_argument("-d", "--n-depth", type=_sizes, default=[0], help="tokens already in memory")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-ub", "--ubatch-size", type=int, default=512)
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    parser.add_argument("-ctk", "--cache-type-k", choices=sorted(KV_TYPES), default="f16")
    parser.add_argument("-ctv", "--cache-type-v", choices=sorted(KV_TYPES), default="f16")
    parser.add_argument("-o", "--output", choices=("md", "json"), default="md")
    parser.add_argument("--store", action="store_true", help="measure the store instead, against plain files")
    parser.add_argument("--daemon", action="store_true", help="measure how prompt a busy daemon is instead")
    parser.add_argument("--store-path", type=Path, help="folder on the disk to measure (default: temporary)")


def _repeat(n: int, prepare: Callable[[], None], work: Callable[[], None]) -> list[float]:
    """Seconds of `n` runs of `work`, after one that warms up."""
    seconds = []
    for i in range(n + 1):
        prepare()
        begin = time.perf_counter()
        work()
        if i:
            seconds.append(time.perf_counter() - begin)
    return seconds


def measure(model: LoadedModel, n_prompt: int, n_gen: int, depth: int, repetitions: int) -> list[float]:
    """Seconds of each repetition of reading `n_prompt` tokens, or of `n_gen` decode steps, at `depth`.

    As llama-bench does, tokens are random: speed does not depend on what they are.
    """
    runner = model.runner
    rng = np.random.default_rng(1)
    ids = rng.integers(0, runner.n_vocab, depth + n_prompt + n_gen).astype(np.int32)
    sequence = LinearSequence(runner, len(ids))
    for _ in sequence.evaluate(ids[:depth], logits="none"):
        pass

    def work() -> None:
        if n_prompt:
            for _ in sequence.evaluate(ids[depth : depth + n_prompt], logits="last"):
                pass
        for i in range(depth + n_prompt, len(ids)):
            runner.step([sequence.run(ids[i : i + 1])])

    return _repeat(repetitions, lambda: sequence.truncate(depth), work)


def run(args: argparse.Namespace) -> int:
    if args.store or args.daemon:
        return bench_store.run(args)
    tests = [(p, 0, d) for d in args.n_depth for p in args.n_prompt if p]
    tests += [(0, n, d) for d in args.n_depth for n in args.n_gen if n]
    n_ctx = max((p + n + d for p, n, d in tests), default=1)
    options = ModelOptions(
        n_ctx=n_ctx, n_ubatch=args.ubatch_size, n_threads=args.threads, max_runs=1, max_outputs=1,
        key_type=args.cache_type_k,
        value_type=args.cache_type_v,
    )  # fmt: skip
    model = load_model(args.model, options)
    try:
        rows = []
        for p, n, d in tests:
            seconds = measure(model, p, n, d, args.repetitions)
            speeds = [(p + n) / s for s in seconds]
            rows.append(_row(model, args, p, n, d, seconds, speeds))
            if args.output == "md":
                print(f"{args.model.name}: {p + n} tokens at depth {d} done", file=sys.stderr)
    finally:
        model.close()
    print(json.dumps(rows, indent=2) if args.output == "json" else _table(rows))
    return 0


def _row(
    model: LoadedModel,
    args: argparse.Namespace,
    p: int,
    n: int,
    d: int,
    seconds: list[float],
    speeds: list[float],
) -> dict[str, object]:
    return {
        "model_filename": str(args.model),
        "model_type": f"{model.file.architecture} {model.file.file_type}",
        "model_size": model.file.n_bytes,
        "model_n_params": model.file.n_params,
        "backends": "emberd",
        "n_threads": args.threads,
        "n_ubatch": args.ubatch_size,
        "type_k": args.cache_type_k,
        "type_v": args.cache_type_v,
        "n_prompt": p,
        "n_gen": n,
        "n_depth": d,
        "avg_ns": int(statistics.fmean(seconds) * 1e9),
        "avg_ts": statistics.fmean(speeds),
        "stddev_ts": statistics.stdev(speeds) if len(speeds) > 1 else 0.0,
        "median_ts": statistics.median(speeds),
        "samples_ns": [int(s * 1e9) for s in seconds],
        "samples_ts": speeds,
    }


def _table(rows: list[dict[str, object]]) -> str:
    lines = [
        "| model | size | params | backend | threads | test | t/s |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    for r in rows:
        test = f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}"
        if r["n_depth"]:
            test += f" @ d{r['n_depth']}"
        size, params = float(str(r["model_size"])) / 2**20, float(str(r["model_n_params"])) / 1e6
        lines.append(
            f"| {r['model_type']} | {size:.2f} MiB | {params:.2f} M | CPU | {r['n_threads']} | {test} "
            f"| {r['avg_ts']:.2f} ± {r['stddev_ts']:.2f} |"
        )
    return "\n".join(lines)
