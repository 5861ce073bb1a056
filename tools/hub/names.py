"""Names of repositories, of the files in them and of the shards of a split model. All of it is untrusted."""

import re
from dataclasses import dataclass

from tools.errors import FetchError

_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
_QUANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)
_MAX_DEPTH = 16
_MAX_COMPONENT = 200
"""Bytes of a component: names of 255 must also have room for what marks a partial download."""


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository. `size` (bytes) is None and `sha256` (hex) "" where the hub does not say."""

    path: str
    size: int | None = None
    sha256: str = ""


def parse_reference(text: str) -> tuple[str, str]:
    """``user/repo[:quant]`` as (repository, quant or ""). Raises FetchError."""
    repo, colon, quant = text.partition(":")
    if not _REPO.fullmatch(repo) or ".." in repo or (colon and not _QUANT.fullmatch(quant)):
        raise FetchError(f"{shown(text)!r} names no repository: expected USER/REPO[:QUANT]")
    return repo, quant


def is_safe_path(path: str) -> bool:
    """Whether a file of a repository can be kept under its own name: relative, printable, nothing hidden.

    Names that begin with a dot are where the cache keeps its own notes.
    """
    components = path.split("/")
    return (
        path.isprintable()
        and "\\" not in path
        and len(components) <= _MAX_DEPTH
        and all(
            component and not component.startswith(".") and len(component.encode()) <= _MAX_COMPONENT
            for component in components
        )
    )


def shards_of(path: str) -> tuple[str, ...]:
    """Every file of the model that `path` belongs to, the first shard first; the path alone if it is whole.

    Raises FetchError when the numbers in the name cannot be.
    """
    match = _SHARD.fullmatch(path)
    if match is None:
        return (path,)
    stem, number, count, suffix = match[1], int(match[2]), int(match[3]), match[4]
    if not 1 <= number <= count:
        raise FetchError(f"{shown(path)}: a split model has no shard {number} of {count}")
    middle = path[match.end(2) : match.start(3)]
    return tuple(f"{stem}-{one:05}{middle}{count:05}{suffix}" for one in range(1, count + 1))


def is_later_shard(path: str) -> bool:
    """Whether `path` is a shard of a split model, but not the one that it is opened by."""
    match = _SHARD.fullmatch(path)
    return match is not None and int(match[2]) != 1


def without_shard(path: str) -> str:
    """The path without its suffix and without the numbers of a shard."""
    match = _SHARD.fullmatch(path)
    return match[1] if match else path.rpartition(".")[0]


def shown(text: str) -> str:
    """Foreign text made fit for one line on a terminal."""
    clean = "".join(one if one.isprintable() else "?" for one in text[:201])
    return clean if len(clean) <= 200 else clean[:199] + "…"
