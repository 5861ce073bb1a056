"""Small disks for tests: they can be filled, made read-only, and mounted anew. Mounting needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _run(*command: str) -> None:
    """Run a command; where that is not allowed the test is skipped, or fails when ``CI=true``."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        failure = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        failure = str(error)
    if failure:
        message = f"cannot have a disk of its own: {command[0]}: {failure}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)


@contextmanager
def memory_disk(folder: Path, megabytes: int = 48) -> Iterator[Path]:
    """A tmpfs on the new folder `folder`."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class FailingDisk:
    """An ext4 file system in a file, mounted on `folder`, which can go read-only as after an I/O error."""

    def __init__(self, folder: Path, megabytes: int = 96) -> None:
        self.folder = folder
        self._image = folder.with_suffix(".img")
        folder.mkdir()
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.folder))

    def fail(self) -> None:
        """What the kernel does on an error: no write succeeds, whatever files are open."""
        _run("mount", "-o", "remount,abort", str(self.folder))

    def unmount(self) -> bool:
        """False while somebody has a file open on it."""
        return subprocess.run(["umount", str(self.folder)], capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)
