"""Which words of a text are independent of each other."""

import re

import numpy as np

from runtime.tokenizers.vocabulary import SPACE

_LONGEST_CHARACTER = 4


def word_pattern(spellings: bytes) -> "re.Pattern[str]":
    """Matches the words of a text in which spaces are U+2581.

    A word begins at a U+2581 after a character that no token has before one. No token reaches across such
    a border, so the words are independent. `spellings` is a buffer that holds every token (or
    every merge ``a b``); bytes between them only make the words longer.
    """
    glue = "".join(map(re.escape, sorted(_before_space(spellings) | {"\0", SPACE.decode()})))
    return re.compile(rf"[\s\S][^\u2581]*(?:(?<=[{glue}])\u2581[^\u2581]*)*")


def _before_space(spellings: bytes) -> set[str]:
    """Characters before a U+2581, directly or with the space of a merge between them.

    Most stand at the start of a token, behind the zero byte of its length prefix: those are left out.
    """
    data = np.frombuffer(spellings, np.uint8)
    found = np.flatnonzero((data[:-2] == SPACE[0]) & (data[1:-1] == SPACE[1]) & (data[2:] == SPACE[2]))
    found = found[(found > 0) & (data[found - 1] != 0)]
    contexts = {spellings[max(0, at - _LONGEST_CHARACTER - 1) : at] for at in found.tolist()}
    return {context.removesuffix(b" ").decode("utf-8", "ignore")[-1:] for context in contexts}
