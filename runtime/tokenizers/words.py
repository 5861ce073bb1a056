"""Texts as sequences of words: which words are independent, and remembering what became of them."""

import re
from collections.abc import Callable, Iterable

from runtime.tokenizers.vocabulary import SPACE

_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 64
_BEFORE_SPACE = re.compile(rb"([\x00-\x7f]|[\xc2-\xf4][\x80-\xbf]+) ?(?=" + SPACE + rb")")


def word_pattern(spellings: bytes) -> "re.Pattern[str]":
    """Matches the words of a text in which spaces are U+2581.

    A word begins at a U+2581 after a character that no token has before one. No token reaches across such
    a border, so the words are independent. `spellings` is a buffer that holds every token (or
    every merge ``a b``); bytes between them only make the words longer.
    """
    before = {found.decode("utf-8", "replace") for found in set(_BEFORE_SPACE.findall(spellings))}
    glue = "".join(map(re.escape, sorted(before | {"\0", "\u2581"})))
    return re.compile(rf"[\s\S][^\u2581]*(?:(?<=[{glue}])\u2581[^\u2581]*)*")


class WordCache:
    """Ids of words seen before; texts repeat most of their words. Long words are not kept."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._known: dict[str, list[int]] = {}

    def encode(self, words: Iterable[str], ids: list[int]) -> None:
        """Append the ids of `words` to `ids`."""
        known = self._known
        for word in words:
            found = known.get(word)
            if found is None:
                found = self._encode(word)
                if len(word) <= _CACHED_LENGTH:
                    if len(known) >= _CACHED_WORDS:
                        known.clear()
                    known[word] = found
            ids += found
