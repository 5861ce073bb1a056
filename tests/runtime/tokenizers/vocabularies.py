"""The vocabularies with expectations, unpacked once per run."""

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runtime.gguf import open_model
from runtime.tokenizers import Tokenizer, load_tokenizer
from tests.models import gemma3_path, smollm2_path
from tests.shared_data import shared

SHIPPED = (
    "aquila",
    "baichuan",
    "bert-bge",
    "command-r",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "gpt-neox",
    "llama-bpe",
    "llama-spm",
    "nomic-bert-moe",
    "qwen2",
    "qwen35",
    "rwkv-world",
    "starcoder",
)
REAL = {"real-smollm2-135m": smollm2_path, "real-gemma3-270m": gemma3_path}
NAMES = (*SHIPPED, *REAL)

_folder = TemporaryDirectory(prefix="emberd-vocabularies-")


@dataclass(frozen=True)
class Case:
    """One string: its ids without and with parsing of special tokens, then both with `add_special`."""

    name: str
    data: bytes
    plain: list[int]
    parsed: list[int]
    plain_added: list[int]
    parsed_added: list[int]
    text: bytes


@cache
def strings() -> list[tuple[str, bytes]]:
    rows = json.loads(shared("tokenizers/strings.json").read_text())
    return [(row[0], bytes.fromhex(row[2]) if row[1] is None else row[1].encode()) for row in rows]


@cache
def vocabulary_path(name: str) -> Path:
    if name in REAL:
        return REAL[name]()
    prefix = "vocab" if name == "rwkv-world" else "ggml-vocab"
    path = Path(_folder.name) / f"{name}.gguf"
    path.write_bytes(lzma.decompress(shared(f"tokenizers/{prefix}-{name}.gguf.xz").read_bytes()))
    return path


@cache
def tokenizer(name: str) -> Tokenizer:
    with open_model(vocabulary_path(name)) as model:
        return load_tokenizer(model)


@cache
def expectations(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shared(f"tokenizers/{name}.json").read_text())
    return found


def cases(name: str) -> list[Case]:
    """The strings that llama.cpp itself accepts."""
    expected = expectations(name)
    before, after = expected["prefix"], expected["suffix"]
    other_text = expected["detok_hex_where_not_input"]
    found = []
    for (label, data), row in zip(strings(), expected["cases"], strict=True):
        if row is None:
            continue
        plain, parsed = row[0], row[1] or row[0]
        if len(row) == 4:
            plain_added, parsed_added = row[2], row[3] or row[2]
        else:
            plain_added, parsed_added = before + plain + after, before + parsed + after
        text = bytes.fromhex(other_text[label]) if label in other_text else data
        found.append(Case(label, data, plain, parsed, plain_added, parsed_added, text))
    return found
