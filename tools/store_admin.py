"""`emberd store …`: look into a store beside a running daemon, or change one that nobody runs on."""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import platformdirs

from store import (
    Forgotten,
    ManifestInfo,
    Selection,
    Store,
    StoreBusy,
    StoreError,
    StoreUnusable,
    compact_store,
)
from store.fingerprint import Value
from tools.errors import reason

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_VALUE = 100
_LEAST_FREE = 1 << 30


def default_store_path(environ: Mapping[str, str] = os.environ) -> Path:
    """$STATE_DIRECTORY where a service manager gives one, else the user's state directory."""
    state = environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(state) if state else platformdirs.user_state_path("emberd", appauthor=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `emberd store`: one subcommand per verb."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--store-path", type=Path, default=None, help="directory of the daemon's state (default: its own)"
    )
    common.add_argument("--json", action="store_true", help="machine-readable output")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, help_: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, parents=[common], help=help_, description=help_)

    verb("ls", "list the named saves")
    verb("show", "all that is known of a save").add_argument("name", help="name of the save")
    verb("stats", "sizes and counts")
    verb("verify", "check that the store is sound").add_argument(
        "--deep", action="store_true", help="read everything and compare checksums"
    )
    verb("doctor", "models, damage found so far, and what to do about it")
    verb("repair", "make the records agree again, dropping what cannot be saved")
    prune = verb("prune", "evict what was used least recently, or of one model; saves always stay")
    prune.add_argument("--to", type=_size, metavar="SIZE", help="until so many bytes are left, e.g. 4G")
    prune.add_argument(
        "--unused", type=_age, metavar="AGE", help="only what was not used for e.g. 12h or 30d"
    )
    prune.add_argument(
        "--fingerprint", type=_id, metavar="ID", help="only what is of this model, as `doctor` shows it"
    )
    verb("compact", "return freed space to the disk and erase what was deleted")
    export = verb("export", "write a save to a portable file")
    export.add_argument("name", help="name of the save")
    export.add_argument("file", type=Path)
    import_ = verb("import", "bring in a portable file")
    import_.add_argument("file", type=Path)
    import_.add_argument("--name", help="keep it under this name (default: its own)")
    forget = verb("forget", "delete a text and all that only it holds; `compact` then erases it")
    what = forget.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", help="name of a save")
    what.add_argument(
        "--prefix", metavar="TEXT", help="all that starts with this text, saves included; needs -m"
    )
    what.add_argument("--tokens", type=Path, metavar="FILE", help="the same for a JSON list of token ids")
    what.add_argument("--all", action="store_true", help="everything")
    forget.add_argument("-m", "--model", type=Path, help="GGUF file whose tokenizer reads TEXT")


def _size(text: str) -> int:
    digits, unit = text.rstrip("BbIi"), ""
    if digits and digits[-1].upper() in _UNITS:
        digits, unit = digits[:-1], digits[-1].upper()
    try:
        value = float(digits)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 4G") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500M or 4G")
    return int(value * _UNITS[unit])


def _age(text: str) -> float:
    """Seconds."""
    try:
        value = float(text[:-1]) * _SECONDS[text[-1:]]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 12h or 30d") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 12h or 30d")
    return value


def _id(text: str) -> bytes:
    """The eight bytes that records are marked with, of an id or its beginning."""
    try:
        id_ = bytes.fromhex(text)
    except ValueError:
        id_ = b""
    if len(id_) < 8:
        raise argparse.ArgumentTypeError(f"{text!r} is not an id of 16 hexadecimal digits or more")
    return id_[:8]


def run(args: argparse.Namespace) -> int:
    """Do what the verb says.

    0, or with one line on stderr 1, and 75 when a daemon has the store; 2 when `verify` or `doctor` found
    damage.
    """
    state = args.store_path or default_store_path()
    try:
        if args.verb == "compact":
            return _compact(state, args)
        if args.verb != "import" and not (state / "store" / "data.mdb").exists():
            raise StoreUnusable(f"there is no store in {state}")
        reads = args.verb in _READERS
        if not reads and args.verb not in ("import", "repair"):
            # what is no store is the owner's to set aside, not the operator's who mistyped a path
            Store.open(state, read_only=True).close()
        verb = _READERS.get(args.verb) or _WRITERS[args.verb]
        with closing(Store.open(state, read_only=reads, min_free_bytes=0)) as store:
            return verb(store, args)
    except StoreBusy as error:
        print(f"emberd store: {error}: stop it first", file=sys.stderr)
        return os.EX_TEMPFAIL
    except (StoreError, lmdb.Error, OSError, ValueError) as error:
        print(f"emberd store: {reason(error)}", file=sys.stderr)
        return 1


def _compact(state: Path, args: argparse.Namespace) -> int:
    before, after = compact_store(state)
    _print(args, {"bytes_before": before, "bytes_after": after}, f"{_bytes(before)} -> {_bytes(after)}")
    return 0


def _ls(store: Store, args: argparse.Namespace) -> int:
    saves = store.list_manifests()
    names = [_short_model(info.model) for info in saves]
    width = max(map(len, ("model", *names)))
    lines = [f"{'tokens':>8} {'size':>10} {'shared':>10}  {'created':19}  {'model':{width}}  name"]
    for info, model in zip(saves, names, strict=True):
        lines.append(
            f"{info.n_tokens:>8} {_bytes(info.n_bytes):>10} {_bytes(info.bytes_shared):>10}"
            f"  {_time(info.created_ms):19}  {model:{width}}  {info.name}"
        )
    _print(args, [_plain(info) for info in saves], "\n".join(lines) if saves else "no saves")
    return 0


def _show(store: Store, args: argparse.Namespace) -> int:
    manifest = store.manifest(args.name)
    fields = next(
        (i.fields for i in store.administration.fingerprints() if i.id == manifest.info.fingerprint), ()
    )
    shown = _plain(manifest.info) | {
        "n_restorable": manifest.n_restorable,
        "n_resumable_point": manifest.n_point,
        "made_with": {name: _readable(value) for name, value in fields},
    }
    if args.json:
        shown["tokens"] = manifest.tokens.tolist()
    _print(args, shown, "\n".join(_lines_of(shown)))
    return 0


def _lines_of(shown: Mapping[str, Any]) -> Iterator[str]:
    """What `show` knows, for people."""
    for key, value in shown.items():
        if isinstance(value, dict):
            yield key
            yield from (
                f"  {name:16} {_cut(str(part))}" for name, part in value.items() if part not in ("", [])
            )
        elif key.endswith("_ms"):
            yield f"{key.removesuffix('_ms'):18} {_time(value)}"
        elif "bytes" in key:
            yield f"{key:18} {_bytes(value)}"
        elif value != "":
            yield f"{key:18} {value}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + " ..."


def _short_model(model: str) -> str:
    return model.rpartition("/")[2]


def _stats(store: Store, args: argparse.Namespace) -> int:
    counts = ("n_blocks", "n_points", "n_manifests")
    gauges = (*counts, "live_bytes", "point_bytes", "pinned_bytes", "file_bytes")
    known = asdict(store.statistics())
    shown = {name: known[name] for name in gauges}
    lines = [f"{n:14} {_bytes(v) if n.endswith('bytes') else v}" for n, v in shown.items()]
    _print(args, shown, "\n".join(lines))
    return 0


def _verify(store: Store, args: argparse.Namespace) -> int:
    found = store.administration.verify(deep=args.deep)
    read = f", {_bytes(found.n_bytes)} compared" if args.deep else ""
    verdict = (
        f"{found.n_blocks} blocks, {found.n_points} points{read}, {len(found.problems) or 'no'} problems"
    )
    _print(args, asdict(found), "\n".join((*found.problems, verdict)))
    return 2 if found.problems else 0


def _doctor(store: Store, args: argparse.Namespace) -> int:
    models = store.administration.fingerprints()
    notes = store.administration.quarantine_notes()
    found = store.administration.verify(deep=False)
    statistics = store.statistics()
    free = shutil.disk_usage(store.environment.directory).free
    lines = [
        f"store   {args.store_path or default_store_path()}: {_bytes(statistics.live_bytes)} in a file of "
        f"{_bytes(statistics.file_bytes)}, {_bytes(free)} of the disk are free"
    ]
    for info in models:
        fields = dict(info.fields)
        name = _readable(fields.get("architecture", "unknown architecture"))
        stored = f"{info.n_blocks} blocks, {info.n_points} points, {_bytes(info.n_bytes)}"
        lines.append(f"model   {info.id.hex()[:16]}  {name}: {stored}")
    lines += [f"damage  {_time(when)}  {id_.hex()[:16]}: {why}" for id_, when, why in notes]
    lines += [f"problem {problem}" for problem in found.problems]
    aside = store.administration.set_aside()
    if aside is not None:
        lines.append(f"damage  a file of {_bytes(aside.stat().st_size)} was set aside: {aside}")
    if statistics.file_bytes > 2 * statistics.live_bytes + (64 << 20):
        unused = _bytes(statistics.file_bytes - statistics.live_bytes)
        lines.append(f"advice  `emberd store compact` returns {unused} to the disk")
    if free < _LEAST_FREE:
        lines.append(
            "advice  the disk is nearly full, so nothing new is stored: make room, prune and compact"
        )
    if aside is not None:
        lines.append("advice  `emberd store compact` removes what was set aside; it holds conversations")
    if any(problem.startswith("the save") for problem in found.problems):
        lines.append("advice  a save that is unreadable is dropped by `repair`; import it anew from its file")
    if found.problems:
        lines.append("advice  `emberd store repair` makes the records agree again")
    shown = {
        "path": str(store.environment.directory),
        "live_bytes": statistics.live_bytes,
        "file_bytes": statistics.file_bytes,
        "free_bytes": free,
        "models": [
            {"id": i.id.hex(), "n_blocks": i.n_blocks, "n_points": i.n_points, "n_bytes": i.n_bytes}
            | {"fields": {name: _readable(value) for name, value in i.fields}}
            for i in models
        ],
        "damage": [{"block": block.hex(), "ms": when, "why": why} for block, when, why in notes],
        "problems": list(found.problems),
        "set_aside": str(aside) if aside else None,
    }
    _print(args, shown, "\n".join(lines))
    return 2 if found.problems else 0


def _repair(store: Store, args: argparse.Namespace) -> int:
    lost = store.administration.repair()
    _print(args, {"n_lost": lost}, f"rebuilt, {lost} blocks lost")
    return 0


def _prune(store: Store, args: argparse.Namespace) -> int:
    if args.to is None and args.unused is None and args.fingerprint is None:
        raise ValueError("prune needs --to, --unused or --fingerprint; `prune --to 0` evicts all but saves")
    since = None if args.unused is None else int((time.time() - args.unused) * 1000)
    selection = Selection(since, args.fingerprint or b"")
    n_evicted = store.administration.prune(down_to=args.to or 0, selection=selection)
    left = store.statistics().live_bytes
    shown = {"n_evicted": n_evicted, "live_bytes": left}
    _print(args, shown, f"{n_evicted} blocks and points evicted, {_bytes(left)} left")
    return 0


def _export(store: Store, args: argparse.Namespace) -> int:
    n_bytes = store.administration.export_save(args.name, args.file)
    _print(args, {"file": str(args.file), "n_bytes": n_bytes}, f"{args.file}: {_bytes(n_bytes)}")
    return 0


def _import(store: Store, args: argparse.Namespace) -> int:
    info = store.administration.import_save(args.file, name=args.name)
    _print(args, _plain(info), f"{info.name}: {info.n_tokens} tokens, {_bytes(info.n_bytes)}")
    return 0


def _forget(store: Store, args: argparse.Namespace) -> int:
    administration = store.administration
    if args.all:
        gone = administration.forget_all()
    elif args.name is not None:
        gone = administration.forget_manifest(args.name)
    elif args.tokens is not None:
        gone = administration.forget_tokens(_read_tokens(args.tokens))
    else:
        gone = _forget_text(store, args.prefix.encode(), args.model)
    verdict = f"{gone.n_blocks} blocks ({_bytes(gone.n_bytes)}) and {len(gone.saves)} saves deleted"
    _print(args, asdict(gone), f"{verdict}; `emberd store compact` erases them from the disk")
    return 0


def _read_tokens(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        ids = json.loads(path.read_bytes())
        return np.array([int(id_) for id_ in ids], np.int64)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{path} is not a JSON list of token ids") from None


def _forget_text(store: Store, text: bytes, model: Path | None) -> Forgotten:
    """Both readings of stored tokens count: with the names of control tokens, and without."""
    if model is None:
        raise ValueError("forget --prefix needs -m MODEL, whose tokenizer the stored text is in")
    from runtime.gguf import open_model
    from runtime.tokenizers import load_tokenizer

    with open_model(model, lenient=True) as file:
        tokenizer = load_tokenizer(file)

    def render(tokens: Any, special: bool) -> bytes:
        known = [id_ for id_ in tokens.tolist() if id_ < tokenizer.n_vocab]
        return tokenizer.decode_bytes(known, special=special)

    gone = [store.administration.forget_text(text, partial(render, special=s)) for s in (True, False)]
    saves = tuple(name for each in gone for name in each.saves)
    return Forgotten(sum(each.n_blocks for each in gone), sum(each.n_bytes for each in gone), saves)


def _plain(info: ManifestInfo) -> dict[str, Any]:
    return asdict(info) | {"fingerprint": info.fingerprint.hex(), "root": info.root.hex()}


def _readable(value: Value) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return [_readable(item) for item in value] if isinstance(value, tuple) else value


def _print(args: argparse.Namespace, data: object, text: str) -> None:
    print(json.dumps(data) if args.json else text)


def _bytes(n_bytes: int) -> str:
    value, unit = float(n_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _time(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


_READERS: dict[str, Callable[[Store, argparse.Namespace], int]] = {
    "ls": _ls,
    "show": _show,
    "stats": _stats,
    "verify": _verify,
    "doctor": _doctor,
    "export": _export,
}
_WRITERS: dict[str, Callable[[Store, argparse.Namespace], int]] = {
    "repair": _repair,
    "prune": _prune,
    "import": _import,
    "forget": _forget,
}
