"""Walk a whole store in a process of its own: `python -m store.probe DIRECTORY`.

A damaged file can kill whoever maps it. After an unclean stop this child goes first. Its exit status is
one of those below, or another one when it could not look, which says nothing about the file.
"""

import sys
import time
from pathlib import Path

import lmdb

from store.environment import Environment, Txn
from store.errors import StoreError, StoreUnusable
from store.repair import inspect

SOUND, UNKNOWN, INCONSISTENT, BROKEN = 0, 1, 81, 82
_TOUCH_S = 0.5


def _touch_parts(environment: Environment, txn: Txn) -> None:
    """Read stored parts, where a missing page would be felt; the binding reads all of each value.

    Ends soon: a large store would need minutes, and what is not looked at here is verified when it is read.
    The pages of the tables, which LMDB follows without a check, are all walked by `inspect`.
    """
    until = time.monotonic() + _TOUCH_S
    for _ in txn.cursor(db=environment.dat):
        if time.monotonic() > until:
            return


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
    except StoreUnusable as error:
        print(error, file=sys.stderr)
        return UNKNOWN
    except (StoreError, lmdb.Error) as error:
        print(error, file=sys.stderr)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return BROKEN


if __name__ == "__main__":
    sys.exit(main())
