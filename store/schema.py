"""Versions of the data file as a whole, and the steps that lead from each to the next.

    1   the first
    2   points: table `pnt`, and fields appended to usage, ledger, saves and blocks

Most changes need no step: records carry a version of their own and fields are appended to them. A step is one
transaction of the owner, after the file was found sound; whoever only reads takes an older file as it is.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import lmdb

if TYPE_CHECKING:
    from store.environment import Environment

SCHEMA = 2
SINCE = {"pnt": 2}
"""Tables that a file of an older schema lacks."""

Step: TypeAlias = "Callable[[Environment, lmdb.Transaction[memoryview]], None]"


def _add_points(environment: "Environment", txn: "lmdb.Transaction[memoryview]") -> None:
    environment.create_table("pnt", txn)


STEPS: dict[int, Step] = {1: _add_points}
"""What makes a file of schema n one of schema n + 1."""
