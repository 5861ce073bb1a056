"""Model files with small vocabularies made for one test."""

from collections.abc import Sequence
from pathlib import Path

from runtime.gguf import open_model
from runtime.tokenizers import Tokenizer, TokenType, load_tokenizer
from tests.runtime.gguf.writer import BOOL, F32, I32, STRING, U32, File

Entry = str | bytes | tuple[str | bytes, TokenType] | tuple[str | bytes, TokenType, float]


def vocabulary(kind: str, entries: Sequence[Entry], **keys: bool | int | str | list[str]) -> File:
    """A file with these tokens: text, then type (normal) and score (0). `keys` are tokenizer.ggml keys."""
    rows = [(e, TokenType.NORMAL, 0.0) if isinstance(e, str | bytes) else (*e, 0.0)[:3] for e in entries]
    file = File().put("general.architecture", STRING, "llama").put("tokenizer.ggml.model", STRING, kind)
    file.put_array("tokenizer.ggml.tokens", STRING, [row[0] for row in rows])
    file.put_array("tokenizer.ggml.token_type", I32, [row[1] for row in rows])
    file.put_array("tokenizer.ggml.scores", F32, [row[2] for row in rows])
    for key, value in keys.items():
        name = "tokenizer.ggml." + key.replace("__", ".")
        if isinstance(value, bool):
            file.put(name, BOOL, value)
        elif isinstance(value, int):
            file.put(name, U32, value)
        elif isinstance(value, str):
            file.put(name, STRING, value)
        else:
            file.put_array(name, STRING, value)
    return file


def load(folder: Path, file: File) -> Tokenizer:
    with open_model(file.write(folder / "vocabulary.gguf")) as model:
        return load_tokenizer(model)
