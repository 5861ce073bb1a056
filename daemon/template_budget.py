"""How much a chat template may do. Templates come from model files, which are untrusted.

Rendering happens in a thread, and a thread cannot be killed: a template has to stop by itself. So every
loop step, call, filter, operation and output pays from one budget by the length of what it touches, and
what would make much of little (widths, repetition, values that contain themselves many times) is weighed
before it happens. Neither time nor memory can grow without bound, whatever is nested. A deadline covers
what the prices misjudge.
"""

import re
import time
from typing import Any

from jinja2.exceptions import SecurityError

UNITS = 32 * 2**20
UNITS_PER_CHARACTER = 256
MAX_TEXT = 4 * 2**20
MAX_WIDTH = 100_000
"""Largest number that may be passed to a string operation: widths, counts and indents are numbers."""

_MAX_BITS = 4096
_STEP = 8
_WIDE_FORMAT = re.compile(r"\d{5}|\*")


class TemplateBudgetExceeded(SecurityError):
    """The template asked for more work than any chat needs."""


class Budget:
    """What one rendering may still spend: about one unit per character touched or step taken.

    `n_input` is the number of characters of the conversation. Every check raises TemplateBudgetExceeded.
    """

    def __init__(self, n_input: int, seconds: float) -> None:
        self._left = UNITS + UNITS_PER_CHARACTER * n_input
        self._max_text = MAX_TEXT + 4 * n_input
        self._deadline = time.monotonic() + seconds

    def spend(self, units: int) -> None:
        """Pay, or fail when nothing is left or time is up."""
        self._left -= units
        if self._left < 0:
            raise TemplateBudgetExceeded("the chat template needs too much work")
        if time.monotonic() > self._deadline:
            raise TemplateBudgetExceeded("the chat template takes too long")

    def made(self, value: Any) -> Any:
        """Pay for a value that an operation made, and return it."""
        if isinstance(value, str | bytes):
            self._check_length(len(value))
            self.spend(1 + len(value) // 4)
        elif isinstance(value, tuple):
            self.weigh(value)
        elif isinstance(value, list | dict | set):
            self._check_length(len(value))
            self.spend(1 + len(value))
        else:
            if isinstance(value, int) and value.bit_length() > _MAX_BITS:
                raise TemplateBudgetExceeded("the chat template computes too large a number")
            self.spend(1)
        return value

    def weigh(self, value: Any) -> int:
        """Characters that `value` has when it is written out. Walks it, and pays for the walk.

        A list that contains one long text, or itself by halves, a million times is short in memory;
        comparing, hashing or writing it is not.
        """
        weight = 0
        pending = [value]
        while pending:
            one = pending.pop()
            if isinstance(one, str | bytes):
                weight += len(one)
            elif isinstance(one, dict):
                pending.extend(one)
                pending.extend(one.values())
            elif isinstance(one, list | tuple | set | frozenset):
                pending.extend(one)
            weight += 2
            self._check_length(weight)
            self.spend(_STEP)
        self.spend(weight // 16)
        return weight

    def check_numbers(self, values: tuple[Any, ...]) -> None:
        """Before an operation for which numbers are widths or counts."""
        for value in values:
            if isinstance(value, int) and abs(value) > MAX_WIDTH:
                raise TemplateBudgetExceeded("the chat template passes too large a number to an operation")

    def check_format(self, text: Any, values: tuple[Any, ...]) -> None:
        """Before a format string is applied to `values`."""
        if isinstance(text, str) and _WIDE_FORMAT.search(text):
            raise TemplateBudgetExceeded("the chat template formats with too large a width")
        n_fields = text.count("{") + text.count("%") if isinstance(text, str) else 1
        self.check_product(n_fields, self.weigh(list(values)))

    def check_product(self, count: Any, length: Any) -> None:
        """Before something of `length` is repeated `count` times."""
        if isinstance(count, int) and isinstance(length, int) and count > 0:
            self._check_length(count * length)
            self.spend(1 + count * length // 4)

    def check_power(self, base: Any, exponent: Any) -> None:
        """Before ``base ** exponent``."""
        if (
            isinstance(base, int)
            and isinstance(exponent, int)
            and max(base.bit_length(), 1) * abs(exponent) > _MAX_BITS
        ):
            raise TemplateBudgetExceeded("the chat template computes too large a number")

    def _check_length(self, length: int) -> None:
        if length > self._max_text:
            raise TemplateBudgetExceeded("the chat template builds too long a text")
