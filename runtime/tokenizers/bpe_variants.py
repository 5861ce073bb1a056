"""BPE with something in front of it: DNA sequences, and words without their white space."""

import re
from collections.abc import Iterable

from runtime.gguf import StringArray
from runtime.tokenizers import utf8
from runtime.tokenizers.base import Flags
from runtime.tokenizers.bpe import BPE, TextBPE
from runtime.tokenizers.characters import CharacterMap, lower
from runtime.tokenizers.pretokenizers import PreType
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.vocabulary import Vocabulary

_KMER = 6
_KMER_MARKER = "\ue000".encode()
_DNA = re.compile(rb"<dna>(.*?)(</dna>|\Z)", re.DOTALL)


class HybridDNA(BPE):
    """Inside ``<dna> ... </dna>`` tokens are runs of six bases, everything else is byte-level BPE.

    The vocabulary marks these tokens with U+E000, so that they differ from words of the same letters.
    """

    def __init__(
        self, vocab: Vocabulary, flags: Flags, strip: StripRules, pre: PreType, merges: StringArray
    ) -> None:
        super().__init__(vocab, flags, strip, pre, merges)
        tags = [vocab.ids.get(tag) for tag in (b"<dna>", b"</dna>", b"<oov>")]
        self._tags = [tag for tag in tags if tag is not None]

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        if len(self._tags) != 3:
            super()._encode_fragment(data, after_special, ids)
            return
        begin, end, _ = self._tags
        position = 0
        for match in _DNA.finditer(data):
            super()._encode_fragment(data[position : match.start()], after_special, ids)
            ids.append(begin)
            ids += self._kmers(match[1].upper())
            if match[2]:
                ids.append(end)
            position = match.end()
        super()._encode_fragment(data[position:], after_special, ids)

    def _kmers(self, bases: bytes) -> list[int]:
        unknown = self._tags[2]
        parts = (bases[i : i + _KMER].ljust(_KMER, b"A") for i in range(0, len(bases), _KMER))
        return [self.vocab.ids.get(part + _KMER_MARKER, unknown) for part in parts]

    def _spell(self, text: bytes, kind: int) -> bytes:
        return super()._spell(text.removesuffix(_KMER_MARKER), kind)


class WhitespaceBPE(TextBPE):
    """Words between white space, which is dropped, each merged from its characters."""

    def __init__(
        self,
        vocab: Vocabulary,
        flags: Flags,
        strip: StripRules,
        pre: PreType,
        merges: StringArray,
        *,
        lowercase: bool,
    ) -> None:
        super().__init__(vocab, flags, strip, pre, merges)
        self._lower = CharacterMap(lower) if lowercase else None

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        text = utf8.decode(data)
        if self._lower is not None:
            text = text.translate(self._lower)
        self._words.extend(ids, self._words_of(text))

    def _words_of(self, piece: str) -> Iterable[str]:
        return (word for word in self._split(piece) if not word.isspace())
