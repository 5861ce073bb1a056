"""PLaMo-2: the best path by score over code points, found from the end."""

import numpy as np

from runtime.errors import ModelError
from runtime.tokenizers import utf8
from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.matching import TokenMatcher
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.vocabulary import TokenType, Vocabulary, byte_of, byte_token_ids

_BOM = "\ufeff"
_SCALE = 1e4
_UNKNOWN_COST = 10_000_000
_HIGHEST_COST = 20_000_000
_FAR = 1 << 60


class PLaMo2(Tokenizer):
    """Costs are scores times -10,000, rounded; the longest of equally good tokens wins.

    A character that no path covers with tokens costs 10,000,000 and is spelled in bytes.
    """

    kind = "PLaMo2"

    def __init__(self, vocab: Vocabulary, flags: Flags, strip: StripRules) -> None:
        super().__init__(vocab, flags, strip)
        if vocab.scores is None:
            raise ModelError("a PLaMo-2 vocabulary needs tokenizer.ggml.scores")
        costs = np.round(-vocab.scores.astype(np.float64) * _SCALE)
        types = np.frombuffer(vocab.file_types, np.uint8)
        usable = (types != TokenType.BYTE) & np.isfinite(costs) & (costs < _HIGHEST_COST)
        self._costs: list[int] = np.where(usable, costs, 0).astype(np.int64).tolist()
        self._matcher = TokenMatcher((vocab.tokens[id], id) for id in np.flatnonzero(usable).tolist())
        self._byte_ids = byte_token_ids(vocab)

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        chars = [utf8.encode(char) for char in utf8.decode(data).removeprefix(_BOM)]
        text = b"".join(chars)
        step = self._best_steps(text, chars)
        position = 0
        while position < len(text):
            length, id = step[position]
            if id is not None:
                ids.append(id)
            else:
                spelled = text[position : position + length]
                ids += [i for byte in spelled if (i := self._byte_ids[byte]) is not None]
            position += length

    def _best_steps(self, text: bytes, chars: list[bytes]) -> list[tuple[int, int | None]]:
        """For each byte offset at which a character begins: (bytes, id) of the best first step from there."""
        n = len(text)
        cost = [_FAR] * (n + 1)
        cost[n] = 0
        step: list[tuple[int, int | None]] = [(1, None)] * n
        position = n
        for char in reversed(chars):
            position -= len(char)
            for length, id in reversed(self._matcher.all(text, position)):
                total = cost[position + length] + self._costs[id]
                if total < cost[position]:
                    cost[position] = total
                    step[position] = length, id
            total = cost[position + len(char)] + _UNKNOWN_COST
            if total < cost[position]:
                cost[position] = total
                step[position] = len(char), None
        return step

    def _spell(self, text: bytes, kind: int) -> bytes:
        byte = byte_of(text) if kind == TokenType.BYTE else None
        return text if byte is None else bytes([byte])
