"""Unigram: SentencePiece's normalisation and the best path by the sum of scores."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runtime.errors import ModelError
from runtime.tokenizers import utf8
from runtime.tokenizers.base import Flags, Tokenizer
from runtime.tokenizers.charsmap import CharsMap
from runtime.tokenizers.matching import TokenMatcher
from runtime.tokenizers.special import StripRules
from runtime.tokenizers.spm import utf8_sequences
from runtime.tokenizers.vocabulary import SPACE, TokenType, Vocabulary, spell_piece
from runtime.tokenizers.words import word_pattern

_UNKNOWN_PENALTY = 10.0
_NO_TOKEN = -1
"""Stands for a character that is no token; its score is the last one."""
_CLEAR = 1e-6
_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 64
_LOWEST = -sys.float_info.max
_REPLACEMENT = "\ufffd".encode()


@dataclass(frozen=True, slots=True)
class _Path:
    """The best path through a word. `clear`: no decision in it was close enough to hang on rounding."""

    ids: tuple[int, ...]
    scores: tuple[float, ...]
    clear: bool


class Unigram(Tokenizer):
    """Scores are summed as doubles from the start of the fragment, and the first of equal paths stays.

    Words are independent as in SPM, but for rounding: where two paths through a word are equal up to that,
    the sum before the word can decide. So words are remembered only if their path is clear.
    """

    kind = "UGM"

    def __init__(
        self,
        vocab: Vocabulary,
        flags: Flags,
        strip: StripRules,
        *,
        merge_spaces: bool,
        charsmap: CharsMap | None,
    ) -> None:
        super().__init__(vocab, flags, strip)
        if vocab.scores is None:
            raise ModelError("a Unigram vocabulary needs tokenizer.ggml.scores")
        types = np.frombuffer(vocab.file_types, np.uint8)
        scores = np.where(types == TokenType.USER_DEFINED, 0.0, vocab.scores.astype(np.float64))
        normal = scores[types == TokenType.NORMAL]
        unknown_score = (float(normal.min()) if len(normal) else 0.0) - _UNKNOWN_PENALTY
        self._scores: list[float] = [*scores.tolist(), unknown_score]
        matched = np.isin(types, (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED))
        self._matcher = TokenMatcher((vocab.tokens[id], id) for id in np.flatnonzero(matched).tolist())
        self._user_defined = TokenMatcher(
            (vocab.tokens[id], id) for id in np.flatnonzero(types == TokenType.USER_DEFINED).tolist()
        )
        self._charsmap = charsmap
        self._plain = _plain_runs(charsmap, self._user_defined)
        self._merge_spaces = merge_spaces
        self._split = word_pattern(vocab.strings.raw).findall
        self._unknown = _NO_TOKEN if self.unk_id is None else self.unk_id
        self._known: dict[str, _Path] = {}

    def _encode_fragment(self, data: bytes, after_special: bool, ids: list[int]) -> None:
        text = self._escape_spaces(b"".join(self._normalise(data)))
        found: list[int] = []
        try:
            words = self._split(text.decode())
        except UnicodeDecodeError:
            found += self._best_path(text, 0.0).ids
        else:
            self._encode_words(words, found)
        ids += [
            id
            for i, id in enumerate(found)
            if id >= 0 and not (id == self._unknown and found[i - 1 : i] == [id])
        ]

    def _encode_words(self, words: list[str], ids: list[int]) -> None:
        known = self._known
        total = 0.0
        for word in words:
            path = known.get(word)
            if path is None:
                path = self._best_path(word.encode(), total)
                if path.clear and len(word) <= _CACHED_LENGTH:
                    if len(known) >= _CACHED_WORDS:
                        known.clear()
                    known[word] = path
            ids += path.ids
            for score in path.scores:
                total += score

    def _best_path(self, word: bytes, before: float) -> _Path:
        """The path with the highest sum of scores that starts at the sum `before`."""
        scores, matches = self._scores, self._matcher.all
        best = [_LOWEST] * (len(word) + 1)
        best[0] = before
        came_from = [(0, _NO_TOKEN)] * (len(word) + 1)
        clear = True
        position = 0
        for sequence in utf8_sequences(word):
            width = len(sequence)
            tokens = matches(word, position)
            if all(length != width for length, _ in tokens):
                tokens.append((width, _NO_TOKEN))
            for length, id in tokens:
                end = position + length
                challenger = best[position] + scores[id]
                margin = challenger - best[end]
                if margin > 0.0:
                    best[end] = challenger
                    came_from[end] = position, id
                if -_CLEAR < margin < _CLEAR:
                    clear = False
            position += width
        steps = []
        while position > 0:
            position, id = came_from[position]
            steps.append(id)
        steps.reverse()
        ids = tuple(self._unknown if id == _NO_TOKEN else id for id in steps)
        return _Path(ids, tuple(scores[id] for id in steps), clear)

    def _escape_spaces(self, text: bytes) -> bytes:
        if self._merge_spaces:
            return b"".join(SPACE + word for word in text.split(b" ") if word)
        words = text.lstrip(b" ")
        prefix = SPACE if words and self.flags.add_space_prefix else b""
        return SPACE * (len(text) - len(words)) + prefix + words.replace(b" ", SPACE)

    def _normalise(self, data: bytes) -> Iterator[bytes]:
        """User-defined tokens as they are, else replacements of the charsmap, else valid characters."""
        position = 0
        while position < len(data):
            if (run := self._plain.match(data, position)) is not None:
                end = run.end() - (run.end() < len(data) and data[run.end()] >= 0x80)
                if end > position:
                    yield data[position:end]
                    position = end
                    continue
            if (user := self._user_defined.longest(data, position)) is not None:
                yield data[position : position + user[0]]
                position += user[0]
            elif self._charsmap and (replaced := self._charsmap.longest(data, position)) is not None:
                yield replaced[1]
                position += replaced[0]
            else:
                length, _ = utf8.sequence_at(data, position)
                yield data[position : position + length] if length else _REPLACEMENT
                position += max(1, length)

    def _spell(self, text: bytes, kind: int) -> bytes:
        return spell_piece(text, kind)


def _plain_runs(charsmap: CharsMap | None, user_defined: TokenMatcher) -> "re.Pattern[bytes]":
    """Runs of ASCII that normalisation leaves alone, but perhaps for the byte before a non-ASCII one."""
    stable = charsmap.stable_bytes() if charsmap else frozenset(range(0x80))
    stable -= {token[0] for token in user_defined.tokens}
    members = b"".join(re.escape(bytes([byte])) for byte in sorted(stable))
    return re.compile(rb"[" + members + rb"]+" if members else rb"(?!)")
