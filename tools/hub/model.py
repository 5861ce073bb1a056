"""A model from a hub or from a web address, brought into the cache with all its shards."""

import hashlib
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from tools.cache import cache_folder, exclusive, publish
from tools.errors import FetchError
from tools.hub.choice import choose, is_model, quants
from tools.hub.client import Client, Patience, location_host
from tools.hub.download import Wanted, Watch, bring, is_here, require_room
from tools.hub.listing import list_files
from tools.hub.names import RepoFile, is_safe_path, parse_reference, shards_of, shown
from tools.hub.part import Origin, note_path, part_path, write_note

_SHOWN_QUANTS = 24


@dataclass(frozen=True, slots=True)
class Hub:
    """Where models come from and where they are kept. `endpoint` has no slash at its end."""

    endpoint: str
    folder: Path
    token: str = field(default="", repr=False)
    offline: bool = False
    patience: Patience = field(default_factory=Patience)

    @classmethod
    def of_environment(
        cls, environ: Mapping[str, str] = os.environ, *, token: str = "", offline: bool = False
    ) -> "Hub":
        """By MODEL_ENDPOINT or HF_ENDPOINT, HF_TOKEN and the variables of `tools.cache.cache_folder`."""
        endpoint = environ.get("MODEL_ENDPOINT") or environ.get("HF_ENDPOINT") or "https://huggingface.co"
        return cls(
            endpoint=endpoint.rstrip("/"),
            folder=cache_folder("hub"),
            token=(token or environ.get("HF_TOKEN", "")).strip(),
            offline=offline,
        )


def fetch_repo(hub: Hub, reference: str, watch: Watch, file: str = "") -> Path:
    """Path of the model that ``user/repo[:quant]`` means, or of `file` in it; of a split one the first shard.

    Downloaded unless the cache has what the hub lists now. A hub that cannot be asked is no error when the
    cache has a model for the same words. Raises FetchError and OSError (disk).
    """
    repo, quant = parse_reference(reference)
    folder = hub.folder / location_host(hub.endpoint, "HF_ENDPOINT") / repo
    if hub.offline:
        return _cached_model(folder, reference, quant, file)
    with Client(hub.endpoint, hub.token, hub.patience) as client:
        patience = hub.patience if _kept(folder, reference, quant, file) is None else _hasty(hub.patience)
        try:
            listed = list_files(client, hub.endpoint, repo, watch.say, patience)
        except FetchError as error:
            kept = _kept(folder, reference, quant, file)
            if kept is None:
                raise
            watch.say(f"{error}; using the copy in the cache, {kept}")
            return kept
        files = {one.path: one for one in listed}
        names = shards_of(_choose(list(files), reference, quant, file))
        wanted = [_in_repo(hub, repo, folder, _listed(files, name, repo)) for name in names]
        return _bring_all(client, hub.folder, wanted, watch)


def fetch_url(hub: Hub, url: str, watch: Watch) -> Path:
    """Path of the model at a web address, as for `fetch_repo`; a shard's name brings all shards."""
    host = location_host(url, "the model's URL")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise FetchError(f"the model's URL: {shown(str(error))}") from None
    stem, name = posixpath.split(parts.path)
    if not is_safe_path(unquote(name)):
        raise FetchError(f"{host}: the URL of a model ends in a file's name")
    urls = [urlunsplit(parts._replace(path=f"{stem}/{one}")) for one in shards_of(name)]
    folder = hub.folder / host / "_url" / hashlib.sha256(urls[0].encode()).hexdigest()[:16]
    terms = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    wanted = [
        Wanted(one, folder / (file := unquote(posixpath.basename(urlsplit(one).path))), file, terms)
        for one in urls
    ]
    if hub.offline:
        if all(one.path.is_file() for one in wanted):
            return wanted[0].path
        raise FetchError(f"offline: {wanted[0].subject} of {host} is not in the cache ({folder})")
    patience = _hasty(hub.patience) if all(one.path.is_file() for one in wanted) else hub.patience
    with Client(hub.endpoint, hub.token, patience) as client:
        return _bring_all(client, hub.folder, wanted, watch)


def _hasty(patience: Patience) -> Patience:
    """For questions that the cache can answer too: a start without a network should not take minutes."""
    return replace(patience, attempts=min(2, patience.attempts))


def _choose(paths: Sequence[str], reference: str, quant: str, file: str) -> str:
    repo = reference.partition(":")[0]
    models = [path for path in paths if is_model(path)]
    if file:
        for path in paths:
            if path.lower() == file.lower():
                return path
        raise FetchError(f"{repo}: has no file {shown(file)!r} (it has {_enumerated(models)})")
    if not models:
        raise FetchError(f"{repo}: has no GGUF model")
    chosen = choose(models, quant)
    if chosen is None:
        raise FetchError(f"{repo}: has no {quant} (it has {_enumerated(quants(models))})")
    return chosen


def _enumerated(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_QUANTS
    listed = ", ".join(names[:_SHOWN_QUANTS]) or "no GGUF model"
    return f"{listed} and {more} more" if more > 0 else listed


def _listed(files: Mapping[str, RepoFile], name: str, repo: str) -> RepoFile:
    if name not in files:
        raise FetchError(f"{repo}: incomplete: the shard {name} is missing")
    return files[name]


def _in_repo(hub: Hub, repo: str, folder: Path, file: RepoFile) -> Wanted:
    return Wanted(
        url=f"{hub.endpoint}/{repo}/resolve/main/{quote(file.path)}",
        path=folder / file.path,
        subject=f"{repo}/{file.path}",
        terms=f"{hub.endpoint}/{repo}",
        size=file.size,
        sha256=file.sha256,
    )


def _cached_model(folder: Path, reference: str, quant: str, file: str) -> Path:
    """What the cache has for the same words, without asking anybody. Raises FetchError."""
    found = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and is_safe_path(path.relative_to(folder).as_posix())
    )
    if not found:
        raise FetchError(f"offline: nothing of {shown(reference)} is in the cache ({folder})")
    names = shards_of(_choose(found, f"the cache of {reference}", quant, file))
    if missing := sorted(set(names) - set(found)):
        raise FetchError(f"offline: {missing[0]} of {shown(reference)} is not in the cache ({folder})")
    return folder / names[0]


def _kept(folder: Path, reference: str, quant: str, file: str) -> Path | None:
    try:
        return _cached_model(folder, reference, quant, file)
    except FetchError:
        return None


def _bring_all(client: Client, root: Path, wanted: Sequence[Wanted], watch: Watch) -> Path:
    """Make every file complete, then give all of them their names: shards of two versions never meet."""
    first = wanted[0].path
    if all(is_here(one) for one in wanted):
        return first
    for folder in {one.path.parent for one in wanted}:
        if not folder.resolve().is_relative_to(root.resolve()):
            raise FetchError(f"{folder}: leads out of the cache by a symbolic link")
        folder.mkdir(parents=True, exist_ok=True)
    lock = first.with_name(f".{first.name}.lock")
    with exclusive(lock, lambda: watch.say(f"another process fetches {first.name}: waiting for it")):
        missing = [one for one in wanted if not is_here(one)]
        require_room(first.parent, sum(map(_bytes_missing, missing)), wanted[0].subject)
        try:
            origins = [(one, bring(client, one, watch)) for one in missing]
        except FetchError as error:
            if not all(one.path.is_file() for one in wanted):
                raise
            watch.say(f"{error}; using the older copy in the cache, {first}")
            return first
        for one, origin in origins:
            if origin is not None:
                _publish(one, origin)
    return first


def _publish(wanted: Wanted, origin: Origin) -> None:
    part = part_path(wanted.path)
    publish(part, wanted.path)
    changed = wanted.path.stat().st_mtime_ns
    write_note(wanted.path, Origin(origin.source, origin.etag, origin.size, origin.sha256, changed))
    note_path(part).unlink(missing_ok=True)


def _bytes_missing(wanted: Wanted) -> int:
    try:
        here = part_path(wanted.path).stat().st_size
    except OSError:
        here = 0
    return max(0, (wanted.size or 0) - here)
