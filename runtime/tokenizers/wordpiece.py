"""WordPiece: BERT's normalisation, then the longest match in each word."""

import unicodedata

import regex

from runtime.tokenizers import utf8
from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.characters import CharacterMap, base_character, lower
from runtime.tokenizers.matching import TokenMatcher
from runtime.tokenizers.memo import Memo
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.vocabulary import SPACE, Vocabulary, spell_piece

_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co"})
_MARK = regex.compile(r"\p{M}")
_PUNCTUATION = regex.compile(r"\p{P}")
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPiece(Tokenizer):
    """Words are spelled from tokens, longest first; a word that cannot be is one unknown token."""

    kind = "WPM"

    def __init__(
        self, vocab: Vocabulary, flags: Flags, strip: StripRules, *, lowercase: bool, strip_accents: bool
    ) -> None:
        super().__init__(vocab, flags, strip)
        self._normalise = CharacterMap(_Normaliser(lowercase, strip_accents))
        self._matcher = TokenMatcher(vocab.ids.items())
        self._words = Memo(self._encode_word)

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        return () if self.bos_id is None else (self.bos_id,)

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        return () if self.sep_id is None else (self.sep_id,)

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        words = utf8.decode(data).translate(self._normalise).split(" ")
        self._words.extend(ids, filter(None, words))

    def _encode_word(self, word: str) -> list[int]:
        data = SPACE + utf8.encode(word)
        ids = []
        position = 0
        while position < len(data):
            match = self._matcher.longest(data, position)
            if match is None:
                return [] if self.unk_id is None else [self.unk_id]
            position += match[0]
            ids.append(match[1])
        return ids

    def _spell(self, text: bytes, kind: int) -> bytes:
        return spell_piece(text, kind)


class _Normaliser:
    """What becomes of a character: itself, nothing, or a word of its own between spaces."""

    def __init__(self, lowercase: bool, strip_accents: bool) -> None:
        self._lowercase = lowercase
        self._strip_accents = strip_accents

    def __call__(self, char: str) -> str:
        if self._strip_accents:
            char = base_character(char)
        if _is_space(char):
            return " "
        if char in "\0\ufffd" or unicodedata.category(char) in _DROPPED:
            return ""
        if self._strip_accents and _MARK.match(char):
            return ""
        alone = _stands_alone(char)
        if self._lowercase:
            char = lower(char)
        return f" {char} " if alone else char


def _is_space(char: str) -> bool:
    return char.isspace() and not "\x1c" <= char <= "\x1f"


def _stands_alone(char: str) -> bool:
    """Punctuation, ASCII symbols and CJK ideographs."""
    if _PUNCTUATION.match(char):
        return True
    code = ord(char)
    if code < 0x7F:
        return unicodedata.category(char).startswith("S")
    return any(first <= code <= last for first, last in _IDEOGRAPHS)
