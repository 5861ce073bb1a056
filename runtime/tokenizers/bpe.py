"""BPE: byte-level as in GPT-2, or on the characters of the text as in Gemma 4."""

from runtime.gguf import ModelFile, StringArray
from runtime.tokenizers import utf8
from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.merging import merge_symbols
from runtime.tokenizers.pretokenizers import PreType
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.splitting import splitter
from runtime.tokenizers.vocabulary import TokenType, Vocabulary

_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 64
_JOINT = b" "


def _byte_alphabet() -> list[bytes]:
    """GPT-2's spelling of each byte: printable ones as they are, the others from U+0100 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)).encode() for byte in range(256)]


BYTE_SYMBOLS = _byte_alphabet()
_SYMBOL_BYTES = {symbol.decode(): bytes([byte]) for byte, symbol in enumerate(BYTE_SYMBOLS)}


class BPE(Tokenizer):
    """Splits a fragment into words and merges each on its own; words repeat, so results are kept."""

    kind = "BPE"

    def __init__(
        self, vocab: Vocabulary, flags: Flags, strip: StripRules, pre: PreType, ranks: dict[bytes, int]
    ) -> None:
        super().__init__(vocab, flags, strip)
        self._pre = pre
        self._split = splitter(pre.family).split
        self._ranks = ranks
        self._words: dict[str, list[int]] = {}

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        words = self._words
        for word in self._split(utf8.decode(data)):
            known = words.get(word)
            if known is None:
                known = self._encode_word(utf8.encode(word))
                if len(word) <= _CACHED_LENGTH:
                    if len(words) >= _CACHED_WORDS:
                        words.clear()
                    words[word] = known
            ids += known

    def _encode_word(self, word: bytes) -> list[int]:
        find = self.vocab.ids.get
        symbols = [BYTE_SYMBOLS[byte] for byte in word]
        if self._pre.ignore_merges and (whole := find(b"".join(symbols))) is not None:
            return [whole]
        ids = []
        for symbol in merge_symbols(symbols, self._ranks, _JOINT):
            id = find(symbol)
            if id is not None:
                ids.append(id)
            else:
                ids += [i for char in symbol.decode() if (i := find(char.encode())) is not None]
        return ids

    def _spell(self, text: bytes, kind: int) -> bytes:
        if kind != TokenType.NORMAL:
            return b""
        return b"".join(_SYMBOL_BYTES.get(char, char.encode()) for char in text.decode("utf-8", "replace"))


def load_ranks(model: ModelFile) -> dict[bytes, int]:
    """Rank of each merge, keyed as in the file: ``a b``. Of two equal merges the first counts."""
    merges = model.get_array("tokenizer.ggml.merges", StringArray)
    if merges is None:
        return {}
    n = len(merges)
    return dict(zip(reversed(merges.byte_strings()), range(n - 1, -1, -1), strict=True))
