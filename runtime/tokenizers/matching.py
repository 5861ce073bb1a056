"""Which tokens begin at a place in a text, without a trie: by the lengths that tokens with this head have."""

from collections.abc import Iterable

_HEAD = 4
_SHORT = tuple(range(1, _HEAD))


class TokenMatcher:
    """Finds the tokens of a fixed set that are prefixes of ``text[start:]``.

    For each head of four bytes the lengths of its tokens are known, so a look-up tries only those.
    A trie in Python costs a step per byte and ten times the memory.
    """

    def __init__(self, tokens: Iterable[tuple[bytes, int]]) -> None:
        self._ids = dict(tokens)
        lengths: dict[bytes, set[int]] = {}
        for token in self._ids:
            if len(token) >= _HEAD:
                lengths.setdefault(token[:_HEAD], set()).add(len(token))
        self._lengths = {
            head: tuple(sorted(found | {n for n in _SHORT if head[:n] in self._ids}))
            for head, found in lengths.items()
        }

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def tokens(self) -> Iterable[bytes]:
        return self._ids.keys()

    def longest(self, text: bytes, start: int, limit: int | None = None) -> tuple[int, int] | None:
        """(length, id) of the longest token at `start` that ends within the text, shorter than `limit`."""
        room = len(text) - start if limit is None else min(len(text) - start, limit - 1)
        find = self._ids.get
        for n in reversed(self._lengths.get(text[start : start + _HEAD], _SHORT)):
            if n <= room and (id := find(text[start : start + n])) is not None:
                return n, id
        return None

    def all(self, text: bytes, start: int) -> list[tuple[int, int]]:
        """(length, id) of every token at `start`, the shortest first."""
        room = len(text) - start
        find = self._ids.get
        return [
            (n, id)
            for n in self._lengths.get(text[start : start + _HEAD], _SHORT)
            if n <= room and (id := find(text[start : start + n])) is not None
        ]
