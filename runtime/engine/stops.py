"""Stop strings, found while text arrives in pieces."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scan:
    """Text that may be sent, and the stop string that ended it ("": none yet)."""

    text: str
    word: str = ""


class StopSearch:
    """Finds the stop string that completes first; of several that complete together, the longest.

    The rule looks at characters, so how text was cut into pieces never matters. Text that may be the
    beginning of a stop string is held back. Knuth-Morris-Pratt automata: the cost per character does not
    depend on the length of the stop strings.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = sorted({word for word in words if word}, key=len, reverse=True)
        self._failures = [_failure(word) for word in self._words]
        self._matched = [0] * len(self._words)
        self._held = ""

    def feed(self, text: str) -> Scan:
        """Take the next piece. After a stop string was found nothing more may be fed."""
        if not self._words:
            return Scan(text)
        held = self._held + text
        for i in range(len(self._held), len(held)):
            word = self._advance(held[i])
            if word:
                return Scan(held[: i + 1 - len(word)], word)
        n_kept = max(self._matched)
        self._held = held[len(held) - n_kept :]
        return Scan(held[: len(held) - n_kept])

    def flush(self) -> str:
        """What is held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str:
        found = ""
        for i, word in enumerate(self._words):
            n = self._matched[i]
            failure = self._failures[i]
            while n and word[n] != character:
                n = failure[n - 1]
            if word[n] == character:
                n += 1
            if n == len(word):
                found = found or word
                n = failure[n - 1]
            self._matched[i] = n
        return found


def _failure(word: str) -> list[int]:
    """For each beginning of `word`, the length of its longest proper border."""
    borders = [0]
    n = 0
    for character in word[1:]:
        while n and word[n] != character:
            n = borders[n - 1]
        if word[n] == character:
            n += 1
        borders.append(n)
    return borders
