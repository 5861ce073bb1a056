"""RWKV: the longest token at each byte."""

from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.matching import TokenMatcher
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.vocabulary import Vocabulary

_ESCAPES = {ord("t"): b"\t", ord("n"): b"\n", ord("r"): b"\r"}


class RWKV(Tokenizer):
    """Greedy longest match over bytes. Token texts in the file are escaped."""

    kind = "RWKV"

    def __init__(self, vocab: Vocabulary, flags: Flags, strip: StripRules) -> None:
        super().__init__(vocab, flags, strip)
        self._matcher = TokenMatcher((unescape(text), id) for id, text in enumerate(vocab.tokens))

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        return ()

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        return ()

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        position = 0
        longest = self._matcher.longest
        while position < len(data):
            match = longest(data, position)
            if match is not None:
                position += match[0]
                ids.append(match[1])
            else:
                position += 1
                if self.unk_id is not None:
                    ids.append(self.unk_id)

    def _spell(self, text: bytes, kind: int) -> bytes:
        return unescape(text)


def unescape(text: bytes) -> bytes:
    """Resolve ``\\\\t \\\\n \\\\r \\\\xNN``; a backslash before anything else only protects it."""
    if b"\\" not in text:
        return text
    out = bytearray()
    position = 0
    while position < len(text):
        byte = text[position]
        position += 1
        if byte != ord("\\") or position == len(text):
            out.append(byte)
            continue
        escaped = text[position]
        position += 1
        if escaped == ord("x"):
            out += _hex(text[position : position + 2])
            position += 2
        else:
            out += _ESCAPES.get(escaped, bytes([escaped]))
    return bytes(out)


def _hex(digits: bytes) -> bytes:
    try:
        return bytes([int(digits, 16)])
    except ValueError:
        return b""
