"""What goes wrong with the disk or the file ends here: it is repaired, set aside, or left alone a while."""

import logging
import time
from collections.abc import Callable

import lmdb

from store.breaker import Breaker
from store.environment import Environment
from store.errors import Damaged, StoreError, WriteRefused
from store.ownership import Ownership
from store.repair import rebuild
from store.statistics import Counters
from store.update import run_update

REPAIR_S = 600.0
MAX_REPAIRS = 2
TRIES_BEFORE_LETTING_GO = 3
# A transaction is bad after an error in it; when that is the first one seen, LMDB met a page it cannot use.
CORRUPT = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.IncompatibleError,
    lmdb.BadTxnError,
)
log = logging.getLogger("store")


class Recovery:
    """Runs the steps of the writer thread. `give_up` drops what waits, for the given reason."""

    def __init__(
        self,
        environment: Environment,
        ownership: Ownership,
        breaker: Breaker,
        counters: Counters,
        give_up: Callable[[str], None],
    ) -> None:
        self._env = environment
        self._ownership = ownership
        self._breaker = breaker
        self._counters = counters
        self._give_up = give_up
        self._repaired_at: list[float] = []

    @property
    def reason(self) -> str:
        """Why nothing is written at present, empty when all is well."""
        return self._breaker.reason

    def run(self, step: Callable[[], None]) -> WriteRefused | None:
        """Run a step; what to tell who waits for it when the disk or the file failed."""
        try:
            step()
        except Damaged as error:
            self._repair(str(error))
            return WriteRefused(f"the store had to be repaired, try again: {error}")
        except CORRUPT as error:
            self._replace_file(str(error))
            return WriteRefused(f"the store had to be set aside: {error}")
        except (lmdb.Error, OSError, StoreError) as error:
            self._pause(str(error))
            return WriteRefused(f"the store cannot be written: {error}")
        return None

    def check_file(self) -> None:
        """Raises OSError when what is written would be lost."""
        if not self._ownership.is_in_place():
            raise OSError("its data file was removed or replaced")

    def try_again(self) -> None:
        """See whether a broken disk works again, when it is time to."""
        if self._breaker.is_open and time.monotonic() >= self._breaker.retry_at:
            self.run(self._reopen)

    def _reopen(self) -> None:
        try:
            repairs = self._ownership.recover(self._env)
        except (StoreError, OSError):
            if self._breaker.failures >= TRIES_BEFORE_LETTING_GO:
                self._ownership.let_go(self._env)
            raise
        self._counters.add(rebuilt=repairs)
        run_update(self._env, lambda update: None)
        self._breaker.succeed()
        log.warning("the store can be written again")

    def _repair(self, why: str) -> None:
        now = time.monotonic()
        self._repaired_at = [at for at in self._repaired_at if at > now - REPAIR_S]
        if len(self._repaired_at) >= MAX_REPAIRS:
            self._replace_file(f"repairing did not help: {why}")
            return
        self._repaired_at.append(now)
        log.error("the store is inconsistent (%s): rebuilding its tables", why)
        try:
            lost = self._env.write(lambda txn: rebuild(self._env, txn))
        except CORRUPT as error:
            self._replace_file(str(error))
            return
        except (Damaged, lmdb.Error, OSError) as error:
            self._pause(f"repair failed: {error}")
            return
        self._counters.add(rebuilt=1)
        log.warning("the store was rebuilt; %d blocks were lost", lost)

    def _replace_file(self, why: str) -> None:
        try:
            self._ownership.replace(self._env, why)
        except (StoreError, lmdb.Error, OSError) as error:
            self._pause(f"{why}; starting anew failed: {error}")
            return
        self._repaired_at = []
        self._counters.add(rebuilt=1)

    def _pause(self, why: str) -> None:
        self._breaker.fail(time.monotonic(), why)
        log.error("the store cannot be written, requests go on without it: %s", why)
        self._give_up(why)
