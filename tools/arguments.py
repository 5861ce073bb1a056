"""Values of the tools' arguments; argparse names the argument before what is said here."""

import argparse
from collections.abc import Callable


def whole(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """A reader of integers between `low` and `high`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"expected a value between {low} and {high}, got {text!r}")
        return number

    return read


def sizes(low: int) -> Callable[[str], list[int]]:
    """A reader of integers of at least `low`, separated by commas."""
    read_one = whole(low)
    return lambda text: [read_one(part) for part in text.split(",")]
