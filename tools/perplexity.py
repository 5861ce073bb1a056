"""`emberd perplexity`: how well a model predicts a text, counted as llama-perplexity counts it."""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime.errors import RuntimeFault
from runtime.evaluate import LinearSequence
from runtime.kernels.kvtypes import KV_TYPES
from runtime.model import LoadedModel, ModelOptions, load_model
from tools.arguments import whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("-f", "--file", type=Path, required=True, help="text to predict, read as UTF-8")
    parser.add_argument("-c", "--ctx-size", type=whole(2), default=512, help="tokens of a chunk")
    parser.add_argument(
        "--override-kv",
        action="append",
        default=[],
        metavar="KEY=TYPE:VALUE",
        help="replace a metadata value",
    )
    parser.add_argument("-t", "--threads", type=whole(1, 1024), default=2)
    parser.add_argument("-ctk", "--cache-type-k", choices=sorted(KV_TYPES), default="f16")
    parser.add_argument("-ctv", "--cache-type-v", choices=sorted(KV_TYPES), default="f16")
    for short, what in (("-khad", "k"), ("-vhad", "v")):
        parser.add_argument(
            short, f"--{what}-cache-hadamard", action=argparse.BooleanOptionalAction,
            help="as of the daemon: rotate before storing, by default where that is quantised",
        )  # fmt: skip


def negative_log_likelihoods(
    model: LoadedModel, tokens: npt.NDArray[np.int32], n_ctx: int
) -> Iterator[npt.NDArray[np.float64]]:
    """Nats of each counted token, chunk by chunk.

    As llama.cpp does: chunks of `n_ctx` tokens are independent, each begins with BOS where the model asks for
    one, and only predictions from its second half count, so that every one has some context.
    """
    first = n_ctx // 2
    sequence = LinearSequence(model.runner, n_ctx)
    for at in range(0, len(tokens) - n_ctx + 1, n_ctx):
        chunk = tokens[at : at + n_ctx].copy()
        if model.tokenizer.add_bos and model.tokenizer.bos_id is not None:
            chunk[0] = model.tokenizer.bos_id
        sequence.truncate(0)
        for _ in sequence.evaluate(chunk[:first], logits="none"):
            pass
        (logits,) = sequence.evaluate(chunk[first:-1], logits="all")
        x = logits.astype(np.float64)
        top = x.max(axis=1)
        norm = top + np.log(np.exp(x - top[:, None]).sum(axis=1))
        yield norm - x[np.arange(len(x)), chunk[first + 1 :]]


def run(args: argparse.Namespace) -> int:
    if args.ctx_size < 8:
        raise RuntimeFault("--ctx-size: a chunk needs at least 8 tokens")
    half = args.ctx_size - args.ctx_size // 2
    options = ModelOptions(
        n_ctx=args.ctx_size, n_ubatch=half, n_threads=args.threads, max_runs=1, max_outputs=half,
        key_type=args.cache_type_k, value_type=args.cache_type_v,
        rotate_k=args.k_cache_hadamard, rotate_v=args.v_cache_hadamard, overrides=args.override_kv,
    )  # fmt: skip
    model = load_model(args.model, options)
    try:
        ids = model.tokenizer.encode(args.file.read_bytes(), add_special=True)
        if len(ids) < 2 * args.ctx_size:
            raise RuntimeFault(f"{args.file} has {len(ids)} tokens, at least {2 * args.ctx_size} are needed")
        nll = []
        for chunk in negative_log_likelihoods(model, np.array(ids, np.int32), args.ctx_size):
            nll.append(chunk)
            so_far = np.concatenate(nll)
            print(f"[{len(nll)}]{math.exp(so_far.mean()):.4f}", end=" ", file=sys.stderr, flush=True)
    finally:
        model.close()
    print(file=sys.stderr)
    perplexity = math.exp(so_far.mean())
    error = perplexity * so_far.std(ddof=1) / math.sqrt(len(so_far))
    print(f"Final estimate: PPL = {perplexity:.4f} +/- {error:.5f}")
    return 0
