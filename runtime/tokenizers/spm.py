"""SPM: SentencePiece's BPE by score, with a fallback to bytes."""

import numpy as np

from runtime.errors import ModelError
from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.memo import Memo
from runtime.tokenizers.merging import merge_symbols
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.vocabulary import SPACE, Vocabulary, byte_token_ids, spell_piece
from runtime.tokenizers.words import word_pattern

_SEQUENCE_LENGTH = (1,) * 12 + (2, 2, 3, 4)


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
        self._byte_ids = byte_token_ids(vocab)
        self._split = word_pattern(vocab.strings.raw).findall
        self._words = Memo(lambda word: self._encode_word(word.encode()))

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        if self.flags.add_space_prefix and after_special:
            data = b" " + data
        data = data.replace(b" ", SPACE)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            ids += self._encode_word(data)
        else:
            self._words.extend(ids, self._split(text))

    def _encode_word(self, word: bytes) -> list[int]:
        find = self.vocab.ids.get
        ids: list[int] = []
        for symbol in merge_symbols(utf8_sequences(word), self._ranks, b""):
            id = find(symbol)
            if id is not None:
                ids.append(id)
            else:
                ids += [i for byte in symbol if (i := self._byte_ids[byte]) is not None]
        return ids

    def _spell(self, text: bytes, kind: int) -> bytes:
        return spell_piece(text, kind)


def utf8_sequences(word: bytes) -> list[bytes]:
    """Cut by the length that each first byte announces, valid or not."""
    sequences = []
    position = 0
    while position < len(word):
        end = position + _SEQUENCE_LENGTH[word[position] >> 4]
        sequences.append(word[position:end])
        position = end
    return sequences
