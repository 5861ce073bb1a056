"""Walk a whole store in a process of its own: `python -m store.probe DIRECTORY`.

A damaged file can kill whoever maps it. After an unclean stop this child goes first. Exit status: 0 sound,
1 its tables do not agree (the owner rebuilds them), anything else or a signal: the file cannot be used.
"""

import sys
import time
from pathlib import Path

import lmdb

from store.environment import Environment, Txn
from store.errors import StoreError
from store.repair import inspect

SOUND, INCONSISTENT, BROKEN = 0, 1, 2
_TOUCH_S = 5.0


def _touch_parts(environment: Environment, txn: Txn) -> None:
    """Read the first and the last byte of stored parts, where a missing page would be felt.

    Ends after some seconds: a disk that seeks would need minutes for a large store, and what is not looked at
    here is verified when it is read.
    """
    until = time.monotonic() + _TOUCH_S
    for _, value in txn.cursor(db=environment.dat):
        if time.monotonic() > until:
            return
        if len(value):
            _ = value[0], value[-1]


def _walk(directory: Path) -> int:
    environment = Environment(directory, read_only=True)
    environment.read(lambda txn: _touch_parts(environment, txn))
    problems = environment.read(lambda txn: inspect(environment, txn))
    for problem in problems[:20]:
        print(problem)
    return INCONSISTENT if problems else SOUND


def main() -> int:
    try:
        return _walk(Path(sys.argv[1]))
    except (StoreError, lmdb.Error) as error:
        print(error, file=sys.stderr)
        return BROKEN


if __name__ == "__main__":
    sys.exit(main())
