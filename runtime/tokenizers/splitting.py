"""Cutting text into the pieces that BPE merges on its own, exactly as llama.cpp cuts it.

A family is a list of steps. Each step works on every piece of the one before: a piece becomes
gap, match, gap, ... and all parts stay. Lookaheads therefore end at the borders of a piece.
"""

from collections.abc import Callable
from functools import lru_cache

import regex

from runtime.tokenizers.families import FAMILIES, RightGroups, Step
from runtime.tokenizers.memo import Memo

Cut = Callable[[str], list[str]]

_OTHER_SPACE = regex.compile(r"[^\S\x00-\x7f]|\x85")
_STAND_IN = "\x0b"


class Splitter:
    """Splits text by the steps of one family."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._first, *others = (_cut(step) for step in steps)
        self._others = [Memo(cut) for cut in others]

    def split(self, text: str) -> list[str]:
        """The pieces of `text`; joined they are `text`.

        llama.cpp's expressions see each non-ASCII white-space character as one in the ASCII range, so that
        literal ranges of characters do not match it.
        """
        if text.isascii() or not _OTHER_SPACE.search(text):
            return self._split(text)
        pieces = []
        start = 0
        for piece in self._split(_OTHER_SPACE.sub(_STAND_IN, text)):
            pieces.append(text[start : start + len(piece)])
            start += len(piece)
        return pieces

    def _split(self, text: str) -> list[str]:
        pieces = self._first(text)
        for step in self._others:
            parts: list[str] = []
            step.extend(parts, pieces)
            pieces = parts
        return pieces


@lru_cache(maxsize=len(FAMILIES))
def splitter(family: str) -> Splitter:
    """The splitter of a family, e.g. ``R9``."""
    return Splitter(FAMILIES[family])


def _cut(step: Step) -> Cut:
    if isinstance(step, RightGroups):
        return _right_groups(step)
    pattern = regex.compile(step, regex.V1)

    def cut(piece: str) -> list[str]:
        matches: list[str] = pattern.findall(piece)
        if sum(map(len, matches)) == len(piece):
            return matches
        return _with_gaps(piece, pattern)

    return cut


def _with_gaps(piece: str, pattern: "regex.Pattern[str]") -> list[str]:
    parts = []
    position = 0
    for match in pattern.finditer(piece):
        start, end = match.span()
        if start > position:
            parts.append(piece[position:start])
        parts.append(piece[start:end])
        position = end
    if position < len(piece):
        parts.append(piece[position:])
    return parts


def _right_groups(step: RightGroups) -> Cut:
    """Cut each run of digits so that, but for the first, its groups have `size` digits."""
    run = regex.compile(step.run)

    def cut(piece: str) -> list[str]:
        parts = []
        for part in _with_gaps(piece, run):
            if not run.fullmatch(part):
                parts.append(part)
                continue
            first = len(part) % step.size
            if first:
                parts.append(part[:first])
            parts += [part[i : i + step.size] for i in range(first, len(part), step.size)]
        return parts

    return cut
