"""The daemon with a store that looks for trouble, and for its end, after tenths of seconds.

`python -m tests.daemon.impatient` with the arguments of emberd. The small disks of tests may fill up.
"""

import functools
import sys

import store.writer
from daemon.cli import main
from store import Store

if __name__ == "__main__":
    store.writer.IDLE_S = 0.1
    Store.open = functools.partial(Store.open, retry_s=0.2, min_free_bytes=0)  # type: ignore[method-assign]
    sys.exit(main())
