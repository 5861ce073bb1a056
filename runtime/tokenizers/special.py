"""Special tokens: which ones end a generation, which types they really have, and finding them in text."""

import re
from dataclasses import dataclass

import numpy as np

from runtime.tokenizers.matching import TokenMatcher
from runtime.tokenizers.vocabulary import TokenType, Vocabulary

_DEEPSEEK = "<\uff5c{}\uff5c>"
_DEEPSEEK_EOS = _DEEPSEEK.format("end\u2581of\u2581sentence")
_EOT = (
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT] "
    f"{_DEEPSEEK_EOS} <end_of_utterance>"
)
_EOG = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> "
    "<|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> "
    f"{_DEEPSEEK_EOS} [e~["
)


def _fim(name: str, deepseek: str, short: str) -> str:
    """Spellings of a fill-in-the-middle token."""
    return (
        f"<|fim_{name}|> <fim-{name}> <fim_{name}> {_DEEPSEEK.format(deepseek)} "
        f"<{short}> \u2581<{short}> <|code_{name}|> <|{name}|>"
    )


_BY_TEXT = {
    "eot": _EOT,
    "eom": "<|eom_id|>",
    "fim_pre": _fim("prefix", "fim\u2581begin", "PRE"),
    "fim_suf": _fim("suffix", "fim\u2581hole", "SUF"),
    "fim_mid": _fim("middle", "fim\u2581end", "MID"),
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep": "<|file_sep|>",
}
_HARMONY = "<|channel|> <|message|> <|start|> <|constrain|>"
_SPACE = frozenset(b" \t\n\v\f\r")


def resolve_special(vocab: Vocabulary) -> frozenset[int]:
    """Complete `vocab.special` by text, correct `vocab.types`, and return the end-of-generation ids.

    Some texts mean the same in every model, whatever type the file gives them. Where several
    candidates exist for one role, the first in the lists above is taken.
    """
    for role, texts in _BY_TEXT.items():
        if role not in vocab.special and (candidates := _present(vocab, texts)):
            vocab.special[role] = candidates[0]
            vocab.types[candidates[0]] = TokenType.CONTROL

    eog = {vocab.special[role] for role in ("fim_pad", "fim_rep", "fim_sep") if role in vocab.special}
    for found in _present(vocab, _EOG):
        eog.add(found)
        vocab.types[found] = TokenType.CONTROL
    for found in _present(vocab, _HARMONY):
        vocab.types[found] = TokenType.USER_DEFINED
    eog |= {vocab.special[role] for role in ("eos", "eot", "eom") if role in vocab.special}
    _undo_for_tool_formats(vocab, eog)
    return frozenset(eog)


def _present(vocab: Vocabulary, texts: str) -> list[int]:
    return [id for text in texts.split() if (id := vocab.ids.get(text.encode())) is not None]


def _undo_for_tool_formats(vocab: Vocabulary, eog: set[int]) -> None:
    """Formats in which a usual end marker only ends a part of the answer."""
    texts = {vocab.tokens[id]: id for id in eog}
    calls = texts.keys() & {b"<|call|>", b"<|calls|>"}
    ends = texts.keys() & {b"<|return|>", b"<|flush|>"}
    if calls and ends and (end := texts.get(b"<|end|>")) is not None:
        eog.discard(end)
        vocab.types[end] = TokenType.USER_DEFINED
    plain = texts.keys() & {b"<|tool_response>", b"<|plamo:eos|>"}
    if plain and (sentence_end := texts.get(b"</s>")) is not None:
        eog.discard(sentence_end)
        vocab.types[sentence_end] = TokenType.NORMAL


@dataclass(frozen=True, slots=True)
class StripRules:
    """Special tokens that eat the white space before (`left`) or after (`right`) them."""

    left: frozenset[int] = frozenset()
    right: frozenset[int] = frozenset()


class SpecialSplitter:
    """Cuts text into special tokens and the fragments between them.

    Longer tokens are searched before shorter ones, each from left to right in what is left of the text.
    """

    def __init__(self, vocab: Vocabulary, strip: StripRules) -> None:
        self._strip = strip
        self._all = _finder(vocab, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        self._user_defined = _finder(vocab, TokenType.USER_DEFINED)

    def split(self, text: bytes, parse_special: bool) -> list[bytes | int]:
        """Fragments (never empty) and token ids in the order of the text."""
        finder = self._all if parse_special else self._user_defined
        parts: list[bytes | int] = []
        position = 0
        for start, end, id in self._spans(text, finder):
            if position < start:
                parts.append(text[position:start])
            parts.append(id)
            position = end
        if position < len(text):
            parts.append(text[position:])
        return parts

    def _spans(self, text: bytes, finder: "_Finder") -> list[tuple[int, int, int]]:
        """(start, end, id) of the tokens in the text, in order, white space they eat included."""
        spans: list[tuple[int, int, int]] = []
        if not (waiting := finder.longest_matches(text)):
            return spans
        taken = bytearray(len(text))
        while waiting:
            length = max(waiting)
            demoted: list[int] = []
            for id, start in sorted(waiting.pop(length)):
                end = start + length
                if taken[start]:
                    continue
                if taken[end - 1]:
                    demoted.append(start)
                    continue
                spans.append(self._take(text, taken, start, end, id))
            for start in demoted:
                if (shorter := finder.shorter(text, start, length)) is not None:
                    waiting.setdefault(shorter[0], []).append((shorter[1], start))
        return sorted(spans)

    def _take(self, text: bytes, taken: bytearray, start: int, end: int, id: int) -> tuple[int, int, int]:
        if id in self._strip.left:
            while start and not taken[start - 1] and text[start - 1] in _SPACE:
                start -= 1
        if id in self._strip.right:
            while end < len(text) and not taken[end] and text[end] in _SPACE:
                end += 1
        taken[start:end] = b"\x01" * (end - start)
        return start, end, id


def _finder(vocab: Vocabulary, *types: TokenType) -> "_Finder":
    ids = np.flatnonzero(np.isin(np.frombuffer(vocab.types, np.uint8), types)).tolist()
    return _Finder({vocab.tokens[id]: id for id in ids})


class _Finder:
    """Finds where tokens of a fixed set begin, by their first two bytes and then exactly."""

    def __init__(self, tokens: dict[bytes, int]) -> None:
        self._matcher = TokenMatcher(tokens.items())
        second: dict[bytes, set[bytes]] = {}
        for token in tokens:
            second.setdefault(token[:1], set()).add(token[1:2])
        branches = [
            re.escape(first) + (b"" if b"" in rest else b"[" + b"".join(map(re.escape, rest)) + b"]")
            for first, rest in second.items()
        ]
        self._start = re.compile(b"|".join(branches), re.DOTALL) if branches else None

    def longest_matches(self, text: bytes) -> dict[int, list[tuple[int, int]]]:
        """By length: (id, start) of the longest token at every place where one begins."""
        found: dict[int, list[tuple[int, int]]] = {}
        if self._start is None:
            return found
        search, longest = self._start.search, self._matcher.longest
        match = search(text)
        while match is not None:
            start = match.start()
            if (token := longest(text, start)) is not None:
                found.setdefault(token[0], []).append((token[1], start))
            match = search(text, start + 1)
        return found

    def shorter(self, text: bytes, start: int, length: int) -> tuple[int, int] | None:
        """(length, id) of the longest token at `start` that is shorter than `length`."""
        return self._matcher.longest(text, start, length)
