"""What every tokenizer can do; the kinds differ in how they cut a fragment and how they spell a token."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from runtime.tokenizers import utf8
from runtime.tokenizers.special import SpecialSplitter, StripRules, resolve_special
from runtime.tokenizers.vocabulary import TokenType, Vocabulary

_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)
_CLEAN = (
    (re.compile(rb" (?=[?!.,])"), b""),
    (re.compile(rb" ' "), b"'"),
    (re.compile(rb" (?='(?:s|m|re|ve))"), b""),
)


@dataclass(frozen=True, slots=True)
class Flags:
    """Switches that the file or its pre type sets."""

    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False
    clean_spaces: bool = False


class Tokenizer(ABC):
    """Text to token ids and back, with the ids llama.cpp gives. Safe to use from several threads."""

    kind: str

    def __init__(self, vocab: Vocabulary, flags: Flags, strip: StripRules) -> None:
        self.vocab = vocab
        self.flags = flags
        self.eog_ids = resolve_special(vocab)
        self._splitter = SpecialSplitter(vocab, strip)

    @property
    def n_vocab(self) -> int:
        return len(self.vocab)

    @property
    def add_bos(self) -> bool:
        return self.flags.add_bos

    @property
    def add_eos(self) -> bool:
        return self.flags.add_eos

    @property
    def bos_id(self) -> int | None:
        return self.vocab.special.get("bos")

    @property
    def eos_id(self) -> int | None:
        return self.vocab.special.get("eos")

    @property
    def eot_id(self) -> int | None:
        return self.vocab.special.get("eot")

    @property
    def unk_id(self) -> int | None:
        return self.vocab.special.get("unk")

    @property
    def sep_id(self) -> int | None:
        return self.vocab.special.get("sep")

    @property
    def fim_ids(self) -> dict[str, int]:
        """Fill-in-the-middle tokens by role: fim_pre, fim_suf, fim_mid, fim_pad, fim_rep, fim_sep."""
        return {role: id for role, id in self.vocab.special.items() if role.startswith("fim_")}

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """What `add_special` puts before the text."""
        return (self.bos_id,) if self.add_bos and self.bos_id is not None else ()

    @cached_property
    def suffix_ids(self) -> tuple[int, ...]:
        """What `add_special` puts after the text."""
        return (self.eos_id,) if self.add_eos and self.eos_id is not None else ()

    def encode(
        self, text: str | bytes, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Token ids of `text`. Bytes need not be valid UTF-8.

        `add_special` adds what the model wants around a text (BOS, EOS, ...). `parse_special` also
        recognises control tokens that are spelled out; user-defined tokens are always recognised.
        """
        data = utf8.encode(text) if isinstance(text, str) else bytes(text)
        ids: list[int] = list(self.prefix_ids) if add_special else []
        after_special = True
        for part in self._splitter.split(data, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                self._encode_fragment(part, after_special, ids)
            after_special = isinstance(part, int)
        if add_special:
            ids += self.suffix_ids
        return ids

    def token_bytes(self, id: int, *, special: bool = False) -> bytes:
        """The bytes that the token stands for. Control and unknown tokens have text only if `special`.

        Raises IndexError for an id outside of the vocabulary.
        """
        if not 0 <= id < len(self.vocab):
            raise IndexError(f"token id {id} is outside of the vocabulary of {len(self.vocab)}")
        kind = self.vocab.types[id]
        text = self.vocab.tokens[id]
        if kind in _HIDDEN:
            return text if special else b""
        if kind == TokenType.USER_DEFINED:
            return text
        return self._spell(text, kind)

    def token_text(self, id: int) -> str:
        """The token as the vocabulary spells it."""
        return self.vocab.tokens[id].decode("utf-8", "replace")

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Text of a whole sequence; invalid UTF-8 is replaced. See `StreamDetokenizer` for pieces of one."""
        return self.decode_bytes(ids, special=special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], *, special: bool = False) -> bytes:
        """Bytes of a whole sequence, with the space that `add_space_prefix` put there taken away again."""
        pieces = [self.token_bytes(id, special=special) for id in ids]
        if pieces and self.flags.add_space_prefix:
            pieces[0] = pieces[0].removeprefix(b" ")
        data = b"".join(pieces)
        if self.flags.clean_spaces:
            for pattern, replacement in _CLEAN:
                data = pattern.sub(replacement, data)
        return data

    @abstractmethod
    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        """Append the ids of text without special tokens; it is first or follows one if `after_special`."""

    @abstractmethod
    def _spell(self, text: bytes, kind: int) -> bytes:
        """Bytes of a normal, unused or byte token."""
