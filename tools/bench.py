"""`emberd bench`: prefill and decode speed in llama-bench's table, beside its own figures where wanted."""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from runtime.evaluate import LinearSequence
from runtime.kernels.kvtypes import KV_TYPES
from runtime.model import LoadedModel, ModelOptions, load_model
from tools import bench_capture, bench_store
from tools.arguments import sizes, whole
from tools.llama_bench import Case, LlamaBench, ToolFailed
from tools.random_models import RANDOM_MODELS, random_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("-m", "--model", type=Path, help="GGUF file")
    model.add_argument(
        "--capture", action="store_true", help="no model: measure points of recurrent and compressed memory"
    )
    model.add_argument("--random", choices=sorted(RANDOM_MODELS), help="random weights of that architecture")
    parser.add_argument(
        "-p", "--n-prompt", type=sizes(0), default=[512], help="prompt sizes, comma separated"
    )
    parser.add_argument("-n", "--n-gen", type=sizes(0), default=[128], help="numbers of generated tokens")
    parser.add_argument("-d", "--n-depth", type=sizes(0), default=[0], help="tokens already in memory")
    parser.add_argument("-t", "--threads", type=whole(1, 1024), default=2)
    parser.add_argument("-ub", "--ubatch-size", type=whole(1, 2**16), default=512)
    parser.add_argument("-r", "--repetitions", type=whole(1), default=5)
    parser.add_argument("-ctk", "--cache-type-k", choices=sorted(KV_TYPES), default="f16")
    parser.add_argument("-ctv", "--cache-type-v", choices=sorted(KV_TYPES), default="f16")
    parser.add_argument("-o", "--output", choices=("md", "json"), default="md")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="PROGRAM",
        help="llama-bench, or llama-server with --store or --daemon: run it in turn, and show the ratio",
    )
    parser.add_argument("--store", action="store_true", help="measure the store instead, against plain files")
    parser.add_argument("--daemon", action="store_true", help="measure how prompt a busy daemon is instead")
    parser.add_argument("--store-path", type=Path, help="folder on the disk to measure (default: temporary)")


class Work:
    """One case on a loaded model. As llama-bench does, tokens are random: speed does not depend on them."""

    def __init__(self, model: LoadedModel, case: Case) -> None:
        self._runner, self._case = model.runner, case
        rng = np.random.default_rng(1)
        n_ids = case.depth + case.n_prompt + case.n_gen
        self._ids = rng.integers(0, self._runner.n_vocab, n_ids).astype(np.int32)
        self._sequence = LinearSequence(self._runner, n_ids)
        for _ in self._sequence.evaluate(self._ids[: case.depth], logits="none"):
            pass
        has_tail = self._runner.layout.tail is not None and case.depth
        self._point = self._sequence.capture() if has_tail else None
        self.seconds()  # warms up

    def seconds(self) -> float:
        """Of reading the prompt or of all decode steps."""
        case, sequence = self._case, self._sequence
        if self._point is not None:
            sequence.load(self._point, sequence)
        else:
            sequence.truncate(case.depth)
        begin = time.perf_counter()
        if case.n_prompt:
            for _ in sequence.evaluate(self._ids[case.depth : case.depth + case.n_prompt], logits="last"):
                pass
        for i in range(case.depth + case.n_prompt, len(self._ids)):
            self._runner.step([sequence.run(self._ids[i : i + 1])])
        return time.perf_counter() - begin


def run(args: argparse.Namespace) -> int:
    if args.capture:
        points = list(bench_capture.rows())
        print(json.dumps(points, indent=2) if args.output == "json" else bench_capture.table(points))
        return 0
    if args.random:
        args.model = random_model(args.random)
    try:
        if args.store or args.daemon:
            return bench_store.run(args)
        rows = _measured(args)
    except ToolFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(rows, indent=2) if args.output == "json" else _table(rows))
    return 0


def _measured(args: argparse.Namespace) -> list[dict[str, object]]:
    cases = [Case(p, 0, d) for d in args.n_depth for p in args.n_prompt if p]
    cases += [Case(0, n, d) for d in args.n_depth for n in args.n_gen if n]
    n_ctx = max((c.n_prompt + c.n_gen + c.depth for c in cases), default=1)
    options = ModelOptions(
        n_ctx=n_ctx, n_ubatch=args.ubatch_size, n_threads=args.threads, max_runs=1, max_outputs=1,
        key_type=args.cache_type_k, value_type=args.cache_type_v,
    )  # fmt: skip
    types = args.cache_type_k, args.cache_type_v
    peer = (
        LlamaBench(args.against, args.model, args.threads, args.ubatch_size, *types) if args.against else None
    )
    model = load_model(args.model, options)
    try:
        return [_compared(model, args, case, peer) for case in cases]
    finally:
        model.close()


def _compared(
    model: LoadedModel, args: argparse.Namespace, case: Case, peer: LlamaBench | None
) -> dict[str, object]:
    """Ours and theirs in turn, so that what disturbs the machine for a while disturbs both."""
    work = Work(model, case)
    seconds, theirs = [], []
    for _ in range(args.repetitions):
        seconds.append(work.seconds())
        if peer is not None:
            theirs.append(peer.speed(case))
    row = _row(model, args, case, seconds)
    if theirs:
        median = statistics.median(theirs)
        row |= {"peer_samples_ts": theirs, "peer_median_ts": median}
        row["ratio"] = float(str(row["median_ts"])) / median
    if args.output == "md":
        n_tokens = case.n_prompt + case.n_gen
        print(f"{args.model.name}: {n_tokens} tokens at depth {case.depth} done", file=sys.stderr)
    return row


def _row(model: LoadedModel, args: argparse.Namespace, case: Case, seconds: list[float]) -> dict[str, object]:
    speeds = [(case.n_prompt + case.n_gen) / s for s in seconds]
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
        "n_prompt": case.n_prompt,
        "n_gen": case.n_gen,
        "n_depth": case.depth,
        "avg_ns": int(statistics.fmean(seconds) * 1e9),
        "avg_ts": statistics.fmean(speeds),
        "stddev_ts": statistics.stdev(speeds) if len(speeds) > 1 else 0.0,
        "median_ts": statistics.median(speeds),
        "samples_ns": [int(s * 1e9) for s in seconds],
        "samples_ts": speeds,
    }


def _table(rows: list[dict[str, object]]) -> str:
    compared = any("ratio" in row for row in rows)
    lines = [
        "| model | size | params | backend | threads | test | t/s |" + " llama.cpp | ratio |" * compared,
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |" + " ---: | ---: |" * compared,
    ]
    for r in rows:
        test = f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}"
        if r["n_depth"]:
            test += f" @ d{r['n_depth']}"
        size, params = float(str(r["model_size"])) / 2**20, float(str(r["model_n_params"])) / 1e6
        line = (
            f"| {r['model_type']} | {size:.2f} MiB | {params:.2f} M | CPU | {r['n_threads']} | {test} "
            f"| {r['avg_ts']:.2f} ± {r['stddev_ts']:.2f} |"
        )
        if "ratio" in r:
            line += f" {r['peer_median_ts']:.2f} | {r['ratio']:.2f} |"
        lines.append(line)
    return "\n".join(lines)
