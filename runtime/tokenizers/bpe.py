"""BPE: byte-level as in GPT-2, or on the characters of the text as in Gemma 4."""

from collections.abc import Iterable

from runtime.gguf import ModelFile, StringArray
from runtime.tokenizers import utf8
from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.memo import Memo
from runtime.tokenizers.merging import merge_symbols
from runtime.tokenizers.pretokenizers import PreType
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.splitting import splitter
from runtime.tokenizers.vocabulary import SPACE, TokenType, Vocabulary, byte_token_ids, spell_piece
from runtime.tokenizers.words import word_pattern

_JOINT = b" "


def _byte_alphabet() -> list[bytes]:
    """GPT-2's spelling of each byte: printable ones as they are, the others from U+0100 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)).encode() for byte in range(256)]


BYTE_SYMBOLS = _byte_alphabet()
_SYMBOL_BYTES = {symbol.decode(): bytes([byte]) for byte, symbol in enumerate(BYTE_SYMBOLS)}


class BPE(Tokenizer):
    """Byte-level: the bytes of each word, spelled in GPT-2's alphabet, are merged."""

    kind = "BPE"

    def __init__(
        self, vocab: Vocabulary, flags: Flags, strip: StripRules, pre: PreType, merges: StringArray
    ) -> None:
        super().__init__(vocab, flags, strip)
        self._pre = pre
        self._split = splitter(pre.family).split
        self._ranks = _ranks(merges)
        self._words = Memo(self._encode_word)

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        self._words.extend(ids, self._split(utf8.decode(data)))

    def _encode_word(self, word: str) -> list[int]:
        symbols = [BYTE_SYMBOLS[byte] for byte in utf8.encode(word)]
        if self._pre.ignore_merges and (whole := self.vocab.ids.get(b"".join(symbols))) is not None:
            return [whole]
        ids: list[int] = []
        for symbol in merge_symbols(symbols, self._ranks, _JOINT):
            id = self.vocab.ids.get(symbol)
            if id is not None:
                ids.append(id)
            else:
                ids += self._fallback(symbol)
        return ids

    def _fallback(self, symbol: bytes) -> list[int]:
        """Ids for a merged symbol that is no token: its characters, as far as they are tokens."""
        find = self.vocab.ids.get
        return [id for char in symbol.decode() if (id := find(char.encode())) is not None]

    def _spell(self, text: bytes, kind: int) -> bytes:
        if kind != TokenType.NORMAL:
            return spell_piece(text, kind)
        return b"".join(_SYMBOL_BYTES.get(char, char.encode()) for char in text.decode("utf-8", "replace"))


class TextBPE(BPE):
    """BPE on characters: spaces become U+2581, and what is no token falls back to ``<0xNN>`` bytes."""

    def __init__(
        self, vocab: Vocabulary, flags: Flags, strip: StripRules, pre: PreType, merges: StringArray
    ) -> None:
        super().__init__(vocab, flags, strip, pre, merges)
        self._byte_ids = byte_token_ids(vocab)
        self._split_words = word_pattern(merges.raw).findall

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        text = utf8.decode(data.replace(b" ", SPACE))
        for piece in self._split(text):
            self._words.extend(ids, self._words_of(piece))

    def _words_of(self, piece: str) -> Iterable[str]:
        if self._pre.newline_runs and piece.strip("\n") == "":
            return (piece,)
        if self._pre.word_prefix:
            space = SPACE.decode()
            first, *others = piece.removeprefix(space).split(space)
            return [space + first, *(space + other for other in others)]
        return self._split_words(piece)

    def _encode_word(self, word: str) -> list[int]:
        find = self.vocab.ids.get
        data = utf8.encode(word)
        if self._pre.newline_runs and data.strip(b"\n") == b"" and (whole := find(data)) is not None:
            return [whole]
        ids: list[int] = []
        for symbol in merge_symbols([utf8.encode(char) for char in word], self._ranks, _JOINT):
            id = find(symbol)
            if id is not None:
                ids.append(id)
            else:
                ids += [i for byte in symbol if (i := self._byte_ids[byte]) is not None]
        return ids

    def _spell(self, text: bytes, kind: int) -> bytes:
        return spell_piece(text, kind)


def _ranks(merges: StringArray) -> dict[bytes, int]:
    """Rank of each merge, keyed as in the file: ``a b``. Of two equal merges the first counts."""
    n = len(merges)
    return dict(zip(reversed(merges.byte_strings()), range(n - 1, -1, -1), strict=True))


def load_merges(model: ModelFile) -> StringArray:
    """The file's merges; none is allowed."""
    merges = model.get_array("tokenizer.ggml.merges", StringArray)
    return StringArray.empty() if merges is None else merges
