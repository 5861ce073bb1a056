"""Remembering what became of short pieces of text: texts repeat most of their words."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

_KEPT = 1 << 16
_LONGEST = 64


class Memo(Generic[T]):
    """A function from a piece of text to a list, with its results for short pieces kept.

    Bounded, and safe to use from several threads.
    """

    def __init__(self, function: Callable[[str], list[T]]) -> None:
        self._function = function
        self._known: dict[str, list[T]] = {}

    def extend(self, results: list[T], pieces: Iterable[str]) -> None:
        """Append what the function gives for each of `pieces` to `results`."""
        known = self._known
        for piece in pieces:
            found = known.get(piece)
            if found is None:
                found = self._function(piece)
                if len(piece) <= _LONGEST:
                    if len(known) >= _KEPT:
                        known.clear()
                    known[piece] = found
            results += found
