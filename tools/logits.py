"""`emberd logits`: the raw logits of given token ids, for checking one engine against another."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime.errors import RuntimeFault
from runtime.evaluate import LinearSequence
from runtime.kernels.kvtypes import KV_TYPES
from runtime.model import ModelOptions, load_model
from tools.arguments import whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--tokens", type=Path, required=True, help="JSON list of token ids; no BOS is added")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help=".npz with float32 `logits` [n_tokens, n_vocab]"
    )
    parser.add_argument(
        "--chunks", default="", help="sizes of the steps, comma separated; repeated until the end"
    )
    parser.add_argument("-t", "--threads", type=whole(1, 1024), default=2)
    parser.add_argument("-ub", "--ubatch-size", type=whole(1, 2**16), default=512)
    parser.add_argument("-ctk", "--cache-type-k", choices=sorted(KV_TYPES), default="f16")
    parser.add_argument("-ctv", "--cache-type-v", choices=sorted(KV_TYPES), default="f16")


def read_tokens(path: Path) -> npt.NDArray[np.int32]:
    """int32 token ids of a JSON list. Errors: RuntimeFault naming the file, OSError."""
    try:
        ids = json.loads(path.read_text())
    except ValueError as e:
        raise RuntimeFault(f"{path}: {e}") from e
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise RuntimeFault(f"{path}: expected a JSON list of token ids")
    return np.array(ids, np.int32)


def read_chunks(text: str) -> list[int]:
    """Errors: RuntimeFault for anything but positive integers separated by commas."""
    try:
        chunks = [int(part) for part in text.split(",") if part]
    except ValueError:
        raise RuntimeFault(f"--chunks {text!r}: expected sizes separated by commas") from None
    if any(n < 1 for n in chunks):
        raise RuntimeFault("--chunks: every size must be at least 1")
    return chunks


def run(args: argparse.Namespace) -> int:
    tokens, chunks = read_tokens(args.tokens), read_chunks(args.chunks)
    n_ubatch = max(1, min(args.ubatch_size, len(tokens)))
    options = ModelOptions(
        n_ctx=len(tokens),
        n_ubatch=n_ubatch,
        n_threads=args.threads,
        max_runs=1,
        max_outputs=n_ubatch,
        key_type=args.cache_type_k,
        value_type=args.cache_type_v,
    )
    model = load_model(args.model, options)
    try:
        if int(tokens.max()) >= model.runner.n_vocab:
            raise RuntimeFault(f"{args.tokens}: ids must be below the vocabulary size {model.runner.n_vocab}")
        sequence = LinearSequence(model.runner, len(tokens))
        logits = np.concatenate([step.copy() for step in sequence.evaluate(tokens, chunks)])
    finally:
        model.close()
    np.savez(args.output, logits=logits)
    print(f"{logits.shape[0]} x {logits.shape[1]} logits -> {args.output}", file=sys.stderr)
    return 0
