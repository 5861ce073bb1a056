"""SPM: SentencePiece's BPE by score, with a fallback to bytes."""

import re

import numpy as np

from runtime.errors import ModelError
from runtime.tokenizers.base import SPACE, Flags, Tokenizer, byte_of
from runtime.tokenizers.merging import merge_symbols
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.vocabulary import TokenType, Vocabulary

_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 64
_SEQUENCE_LENGTH = (1,) * 12 + (2, 2, 3, 4)
_BEFORE_SPACE = re.compile(rb"([\x00-\x7f]|[\xc2-\xf4][\x80-\xbf]+)(?=" + SPACE + rb")")


class SPM(Tokenizer):
    """Merges the adjacent pair whose joined text has the best score, over the whole fragment.

    A pair can only merge across a border where some token spells its two characters next to each other.
    Few vocabularies have tokens with a space after a letter, so text falls into words that are
    independent of each other, and the result is that of the whole fragment.
    """

    kind = "SPM"

    def __init__(self, vocab: Vocabulary, flags: Flags, strip: StripRules) -> None:
        super().__init__(vocab, flags, strip)
        if vocab.scores is None:
            raise ModelError("an SPM vocabulary needs tokenizer.ggml.scores")
        order = np.unique(-vocab.scores.astype(np.float64), return_inverse=True)[1]
        self._ranks = dict(zip(vocab.tokens, order.tolist(), strict=True))
        self._byte_ids = [_byte_id(vocab, byte) for byte in range(256)]
        self._word = _word_pattern(vocab)
        self._words: dict[str, list[int]] = {}

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        if self.flags.add_space_prefix and after_special:
            data = b" " + data
        data = data.replace(b" ", SPACE)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            ids += self._encode_word(data)
            return
        words = self._words
        for word in self._word.findall(text):
            known = words.get(word)
            if known is None:
                known = self._encode_word(word.encode())
                if len(word) <= _CACHED_LENGTH:
                    if len(words) >= _CACHED_WORDS:
                        words.clear()
                    words[word] = known
            ids += known

    def _encode_word(self, word: bytes) -> list[int]:
        find = self.vocab.ids.get
        ids: list[int] = []
        for symbol in merge_symbols(_sequences(word), self._ranks, b""):
            id = find(symbol)
            if id is not None:
                ids.append(id)
            else:
                ids += [i for byte in symbol if (i := self._byte_ids[byte]) is not None]
        return ids

    def _spell(self, text: bytes, kind: int) -> bytes:
        if kind == TokenType.BYTE:
            byte = byte_of(text)
            return text if byte is None else bytes([byte])
        return text.replace(SPACE, b" ") if kind == TokenType.NORMAL else b""


def _sequences(word: bytes) -> list[bytes]:
    """Cut by the length that each first byte announces, valid or not."""
    sequences = []
    position = 0
    while position < len(word):
        end = position + _SEQUENCE_LENGTH[word[position] >> 4]
        sequences.append(word[position:end])
        position = end
    return sequences


def _byte_id(vocab: Vocabulary, byte: int) -> int | None:
    return vocab.ids.get(b"<0x%02X>" % byte, vocab.ids.get(bytes([byte]), vocab.special.get("unk")))


def _word_pattern(vocab: Vocabulary) -> "re.Pattern[str]":
    """Words: they begin at a U+2581 that follows a character which no token has before one."""
    before = {found.decode("utf-8", "replace") for found in set(_BEFORE_SPACE.findall(vocab.strings.raw))}
    glue = "".join(map(re.escape, sorted(before | {"\0", "\u2581"})))
    return re.compile(rf"[\s\S][^\u2581]*(?:(?<=[{glue}])\u2581[^\u2581]*)*")
