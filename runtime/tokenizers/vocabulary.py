"""The vocabulary of a model file: texts, types and the special tokens its keys name."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import ModelFile, StringArray

SPACE = b"\xe2\x96\x81"
"""U+2581, which stands for a space in vocabularies that are not byte-level."""


class TokenType(IntEnum):
    """What a token is for; the value is its number in the file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class KindDefaults:
    """What a tokenizer kind assumes where the file has no key."""

    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    sep: int | None = None
    pad: int | None = None
    mask: int | None = None


_KEYS = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id",),
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}


class Vocabulary:
    """Tokens of a model. `tokens[id]` are exact bytes, `types[id]` its TokenType, `ids` the inverse.

    Types are corrected by `special.resolve_special`; `file_types` stay as the file has them.
    `special` maps roles (bos, eos, fim_pre, ...) to ids. `scores` float32 [n] may be missing.
    """

    def __init__(self, model: ModelFile, defaults: KindDefaults) -> None:
        strings = model.get_array("tokenizer.ggml.tokens", StringArray)
        if strings is None or not len(strings):
            raise ModelError(f"{model.path}: has no vocabulary (tokenizer.ggml.tokens)")
        self.strings = strings
        self.tokens = strings.byte_strings()
        n = len(self.tokens)
        if b"" in self.tokens:
            self.tokens = [text or b"[EMPTY_%d]" % id for id, text in enumerate(self.tokens)]
        self.ids = dict(zip(self.tokens, range(n), strict=True))
        if len(self.ids) != n:
            raise ModelError(f"{model.path}: two tokens have the same text: {_duplicate(self.tokens)!r:.60}")
        self.file_types = _types(model, n)
        self.types = bytearray(self.file_types)
        self.scores = _numbers(model, "tokenizer.ggml.scores", n)
        self.special = _special_ids(model, defaults, n)

    def __len__(self) -> int:
        return len(self.tokens)


def tokenizer_key(suffix: str) -> str:
    return f"tokenizer.ggml.{suffix}"


def _duplicate(tokens: list[bytes]) -> bytes:
    """The first that comes a second time. Errors: ValueError if none does."""
    seen: set[bytes] = set()
    for text in tokens:
        if text in seen:
            return text
        seen.add(text)
    raise ValueError("all tokens are different")


def _numbers(model: ModelFile, key: str, n: int) -> np.ndarray[tuple[int], np.dtype[np.generic]] | None:
    values = model.get_array(key, np.ndarray)
    if values is not None and len(values) != n:
        raise ModelError(f"{model.path}: {key} has {len(values)} elements for {n} tokens")
    return values


def _types(model: ModelFile, n: int) -> bytes:
    values = _numbers(model, tokenizer_key("token_type"), n)
    if values is None:
        return bytes([TokenType.NORMAL]) * n
    known = np.isin(values, list(TokenType))
    return np.where(known, values, TokenType.NORMAL).astype(np.uint8).tobytes()


def _special_ids(model: ModelFile, defaults: KindDefaults, n: int) -> dict[str, int]:
    """The file's keys win over the kind's defaults; an id outside of the vocabulary does not count."""
    special: dict[str, int] = {}
    for role, keys in _KEYS.items():
        default = getattr(defaults, role, None)
        if default is not None and default < n:
            special[role] = default
        for key in keys:
            value = model.metadata.get(tokenizer_key(key))
            if type(value) is int and 0 <= value < n:
                special[role] = value
                break
    return special


def kind_of(model: ModelFile) -> str:
    """The file's ``tokenizer.ggml.model``; a file without one has no tokenizer."""
    kind = model.get_str(tokenizer_key("model"), None)
    if kind is None:
        raise UnsupportedModel(f"{model.path}: has no tokenizer (tokenizer.ggml.model is missing)")
    return kind


def byte_of(text: bytes) -> int | None:
    """The byte of a token like ``<0x0A>``."""
    if len(text) == 6 and text.startswith(b"<0x") and text.endswith(b">"):
        try:
            return int(text[3:5], 16)
        except ValueError:
            return None
    return None


def byte_token_ids(vocab: Vocabulary) -> list[int | None]:
    """For each byte the id of its token ``<0xNN>``, or of the byte itself."""
    return [vocab.ids.get(b"<0x%02X>" % byte, vocab.ids.get(bytes([byte]))) for byte in range(256)]


def spell_piece(text: bytes, kind: int) -> bytes:
    """Bytes of a normal, unused or byte token of a vocabulary that writes spaces as U+2581."""
    if kind == TokenType.BYTE:
        byte = byte_of(text)
        return text if byte is None else bytes([byte])
    return text.replace(SPACE, b" ") if kind == TokenType.NORMAL else b""
