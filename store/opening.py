"""From a directory of unknown condition to an environment that can be used."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb

from store import datafile
from store.environment import Environment
from store.errors import Damaged, StoreUnusable
from store.repair import rebuild

SCRATCH = "compacting"
DEFAULT_SHARE = 10
LARGEST_DEFAULT = 32 << 30
# The owner must not load `store.probe`, which runs as a program of its own; see there.
_SOUND, _INCONSISTENT, _BROKEN = 0, 81, 82
_DEADLY = {signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
_PROBE_TIMEOUT_S = 600.0
log = logging.getLogger("store")


_NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "9p", "glusterfs", "lustre", "beegfs")
)


def _file_system(path: Path) -> str:
    """Type of the file system that holds `path`, empty when the system does not say."""
    status = path.stat()
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            if left.split()[2] == device:
                return right.split()[0]
    return ""


def _refuse_network(directory: Path) -> None:
    """Raise `StoreUnusable` where memory mapping and locks do not mean what LMDB needs."""
    kind = _file_system(directory)
    if kind in _NETWORK or kind.startswith("fuse."):
        raise StoreUnusable(f"{directory} is on {kind}: a store needs a local file system")


def prepare_directory(directory: Path, *, allow_network: bool) -> None:
    """Make the directory, readable by its owner only: it holds conversations. Raises `StoreUnusable`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as error:
        raise StoreUnusable(f"cannot use {directory} as a store: {error.strerror}") from None
    if not allow_network:
        _refuse_network(directory)


def default_budget(directory: Path) -> int:
    """A tenth of the disk, at most 32 GiB."""
    return min(shutil.disk_usage(directory).total // DEFAULT_SHARE, LARGEST_DEFAULT)


def default_min_free(directory: Path) -> int:
    """Free bytes that writing leaves to others: 1 GiB or 2 % of the disk."""
    return max(1 << 30, shutil.disk_usage(directory).total // 50)


def open_owned(
    directory: Path, attach: Callable[[bool], Environment], *, trusted: bool
) -> tuple[Environment, int]:
    """The environment of a directory whose lock is held, and how often it had to be repaired (0 or more).

    `attach` maps the data file, or creates it when given True. A file that is too short is extended before
    anything maps it; one that is not `trusted`, since nobody closed it or somebody else changed it, is walked
    by a child process first. What cannot be used is set aside and the store starts empty: a cache may be
    lost, a start may not fail for it. Raises `StoreUnusable` for what is better left alone.
    """
    data = directory / "data.mdb"
    shutil.rmtree(directory / SCRATCH, ignore_errors=True)
    if datafile.is_unused(data):
        return attach(True), 0
    try:
        missing = datafile.extend(data)
        verdict, said = (_SOUND, "") if trusted and not missing else _run_probe(directory)
        if verdict == _BROKEN:
            raise Damaged(said)
        environment = attach(False)
    except Damaged as error:
        set_aside(directory, str(error))
        return attach(True), 1
    environment.clear_stale_readers()
    if verdict != _INCONSISTENT:
        return environment, 0
    try:
        lost = environment.write(lambda txn: rebuild(environment, txn))
    except (Damaged, lmdb.Error) as error:
        environment.close(1.0)
        set_aside(directory, f"{said}; rebuilding failed: {error}")
        return attach(True), 1
    log.error("the store %s was not consistent (%s): rebuilt, %d blocks lost", directory, said, lost)
    return environment, 1


def open_beside(directory: Path) -> Environment:
    """A read-only environment beside its owner. Raises `StoreUnusable` or `Damaged`."""
    data = directory / "data.mdb"
    if not data.exists() or datafile.is_unused(data):
        raise StoreUnusable(f"there is no store in {directory}")
    if datafile.missing_bytes(data):
        raise Damaged(f"{data} is shorter than it should be: start emberd once to repair it")
    return Environment(directory, read_only=True)


def _run_probe(directory: Path) -> tuple[int, str]:
    """Walk the store in a child process (`store.probe`); return its verdict and what it said in one line.

    Raises `StoreUnusable` when the child ended for a reason that does not lie in the file: it was interrupted
    with its parent, or could not run.
    """
    command = [sys.executable, "-P", "-m", "store.probe", str(directory)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return _BROKEN, f"no end after {_PROBE_TIMEOUT_S:g} s"
    if child.returncode in (_SOUND, _INCONSISTENT):
        return child.returncode, "; ".join(child.stdout.splitlines())
    said = (child.stderr.strip().splitlines() or ["unknown"])[-1]
    if child.returncode == _BROKEN:
        return _BROKEN, said
    if -child.returncode in _DEADLY:
        return _BROKEN, f"reading it ended in signal {-child.returncode}"
    ended = f"in signal {-child.returncode}" if child.returncode < 0 else f"with {said}"
    raise StoreUnusable(f"the store {directory} could not be examined: that ended {ended}")


def set_aside(directory: Path, why: str) -> None:
    """Keep the newest unusable file in quarantine/, out of the way."""
    quarantine = directory / "quarantine"
    quarantine.mkdir(mode=0o700, exist_ok=True)
    (directory / "data.mdb").replace(quarantine / "data.mdb")
    (directory / "lock.mdb").unlink(missing_ok=True)
    log.error("the store %s cannot be used (%s): set aside in %s, starting empty", directory, why, quarantine)
