"""`emberd tokenize`: the token ids of a file's bytes."""

import argparse
import json
import sys
from pathlib import Path

from runtime.errors import RuntimeFault
from runtime.gguf import open_model
from runtime.tokenizers import Tokenizer, load_tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m", "--model", type=Path, required=True, help="GGUF file; the vocabulary alone is enough"
    )
    parser.add_argument(
        "-f", "--file", required=True, help="text to tokenize, read as bytes; - is standard input"
    )
    parser.add_argument("--no-special", action="store_true", help="do not add BOS, EOS and the like")
    parser.add_argument("--parse-special", action="store_true", help="recognise control tokens in the text")
    parser.add_argument("--json", action="store_true", help='print {"tokens": [...]} instead of a table')
    parser.add_argument(
        "--override-kv", action="append", default=[], metavar="KEY=TYPE:VALUE", help="replace metadata"
    )


def run(args: argparse.Namespace) -> int:
    with open_model(args.model, overrides=args.override_kv, lenient=True) as model:
        tokenizer = load_tokenizer(model)
    ids = tokenizer.encode(
        read_input(args.file), add_special=not args.no_special, parse_special=args.parse_special
    )
    if args.json:
        print(json.dumps({"tokens": ids}))
    else:
        _print_table(tokenizer, ids)
    return 0


def read_input(name: str) -> bytes:
    """Bytes of a file, or of standard input for ``-``. Errors: RuntimeFault naming the file."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise RuntimeFault(f"{name}: {error.strerror}") from None


def _print_table(tokenizer: Tokenizer, ids: list[int]) -> None:
    for id in ids:
        text = tokenizer.token_bytes(id, special=True).decode("utf-8", "backslashreplace")
        print(f"{id:>7} -> {text!r}")
