"""Mapping text character by character, each character looked up once."""

import unicodedata
from collections.abc import Callable


class CharacterMap(dict[int, str]):
    """A table for `str.translate` that is filled as characters occur."""

    def __init__(self, function: Callable[[str], str]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, code: int) -> str:
        mapped = self[code] = self._function(chr(code))
        return mapped


def lower(char: str) -> str:
    """Lower case of one character as one character."""
    return char.lower()[0]


def base_character(char: str) -> str:
    """The first character of the canonical decomposition: an accented letter without its accents."""
    return unicodedata.normalize("NFD", char)[0]
