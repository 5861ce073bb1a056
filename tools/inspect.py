"""`emberd inspect`: what is in a model file, what memory it needs and whether this build can run it."""

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import RuntimeFault, UnsupportedModel
from runtime.gguf import MetadataValue, ModelFile, StringArray, open_model
from runtime.memory.layout import GroupLayout, MemoryLayout
from runtime.model import memory_layout
from runtime.models import SUPPORTED
from runtime.tokenizers import load_tokenizer
from tools.arguments import whole

_SHOWN_ELEMENTS = 8
_SHOWN_CHARACTERS = 60
_DEFAULT_CONTEXT = 4096
_STEP = 512


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes a model needs: its weights, f16 rows of `n_ctx` positions, and a sequence's `state`.

    The latter two are None where the model cannot be run.
    """

    weights: int
    n_ctx: int
    kv_cache: int | None = None
    state: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="GGUF file, or any shard of a split one")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument(
        "-c", "--ctx-size", type=whole(1), default=_DEFAULT_CONTEXT, help="context that the estimate is for"
    )
    parser.add_argument(
        "--override-kv", action="append", default=[], metavar="KEY=TYPE:VALUE", help="replace metadata"
    )


def run(args: argparse.Namespace) -> int:
    with open_model(args.model, overrides=args.override_kv, lenient=True) as model:
        report = describe(model, n_ctx=args.ctx_size, tensors=args.tensors)
    print(json.dumps(report, indent=2, ensure_ascii=False) if args.json else _as_text(report))
    return 0


def describe(model: ModelFile, *, n_ctx: int, tensors: bool) -> dict[str, Any]:
    """Everything that is printed, as JSON values."""
    memory, reasons = estimate_memory(model, n_ctx), refusals(model)
    if not reasons:
        try:
            n_ctx = min(n_ctx, model.get_int(model.arch_key("context_length")))
            memory = estimate_memory(model, n_ctx, memory_layout(model, n_ctx))
        except RuntimeFault as error:
            reasons = [str(error)]
    report: dict[str, Any] = {
        "path": str(model.path),
        "shards": len(model.shards),
        "version": model.version,
        "architecture": model.metadata.get("general.architecture"),
        "file_type": model.file_type,
        "n_params": model.n_params,
        "n_tensors": len(model.tensors),
        "types": _by_type(model),
        "memory": asdict(memory),
        "can_run": not reasons,
        "reasons": reasons,
        "metadata": {key: _shown(value) for key, value in sorted(model.metadata.items())},
    }
    if tensors:
        report["tensors"] = [
            {"name": t.name, "type": t.type.name, "shape": list(t.shape), "bytes": t.n_bytes}
            for t in model.tensors.values()
        ]
    return report


def refusals(model: ModelFile) -> list[str]:
    """Why this build cannot run the model, one line each; empty if it can."""
    reasons = [str(problem) for problem in model.problems]
    for check in (_check_architecture, _check_tensors, load_tokenizer):
        try:
            check(model)
        except RuntimeFault as error:
            reasons.append(str(error))
    return reasons


def _check_architecture(model: ModelFile) -> None:
    if model.architecture not in SUPPORTED:
        known = ", ".join(sorted(SUPPORTED))
        raise UnsupportedModel(f"architecture {model.architecture!r} is not supported (supported: {known})")


def _check_tensors(model: ModelFile) -> None:
    if not model.tensors:
        raise UnsupportedModel("the file has no tensors: a vocabulary alone cannot be run")


def estimate_memory(model: ModelFile, n_ctx: int, layout: MemoryLayout | None = None) -> MemoryEstimate:
    """Weights as in the file, and what `layout` makes of the whole context; of windows the last rows."""
    if layout is None:
        return MemoryEstimate(model.n_bytes, n_ctx)
    state = layout.tail.captured_bytes(n_ctx) if layout.tail is not None else 0
    rows = sum(group.segment_bytes(_positions(group, n_ctx)) for group in layout.groups)
    return MemoryEstimate(model.n_bytes, n_ctx, rows, state)


def _positions(group: GroupLayout, n_ctx: int) -> int:
    return min(n_ctx, group.window + _STEP) if group.window else n_ctx


def _by_type(model: ModelFile) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in model.tensors.values():
        counts[tensor.type.name] += 1
        sizes[tensor.type.name] += tensor.n_bytes
    return [{"type": name, "tensors": counts[name], "bytes": size} for name, size in sizes.most_common()]


def _shown(value: MetadataValue) -> Any:
    """A JSON value; of an array its length and first elements."""
    if isinstance(value, StringArray):
        return {"type": "string", "length": len(value), "first": value[:_SHOWN_ELEMENTS]}
    if isinstance(value, np.ndarray):
        return {"type": str(value.dtype), "length": len(value), "first": value[:_SHOWN_ELEMENTS].tolist()}
    return value


def _as_text(report: dict[str, Any]) -> str:
    memory = report["memory"]
    lines = [
        f"{report['path']}: GGUF v{report['version']}"
        + (f", {report['shards']} shards" if report["shards"] > 1 else ""),
        f"architecture  {_brief(report['architecture'])}",
        f"file type     {report['file_type']}",
        f"parameters    {report['n_params'] / 1e6:,.2f} M in {report['n_tensors']} tensors",
        f"weights       {_mib(memory['weights'])}",
    ]
    if memory["kv_cache"] is not None:
        lines.append(f"KV cache      {_mib(memory['kv_cache'])} (f16, {memory['n_ctx']} positions)")
    if memory["state"]:
        lines.append(f"state         {_mib(memory['state'])} (of each sequence)")
    lines.append("runs here     " + ("yes" if report["can_run"] else "no"))
    lines += [f"              {reason}" for reason in report["reasons"]]
    lines.append("types")
    lines += [f"  {t['type']:<10} {t['tensors']:>5} tensors {_mib(t['bytes']):>14}" for t in report["types"]]
    lines.append("metadata")
    lines += [f"  {key} = {_brief(value)}" for key, value in report["metadata"].items()]
    if "tensors" in report:
        lines.append("tensors")
        lines += [
            f"  {t['name']:<40} {t['type']:<10} {' x '.join(map(str, t['shape'])):<24} {t['bytes']:>12}"
            for t in report["tensors"]
        ]
    return "\n".join(lines)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        first = ", ".join(_brief(element) for element in value["first"])
        more = ", ..." if value["length"] > len(value["first"]) else ""
        return f"{value['type']}[{value['length']}] [{first}{more}]"
    if isinstance(value, str):
        short = value[:_SHOWN_CHARACTERS]
        return repr(short) + (f"... ({len(value)} characters)" if short != value else "")
    return str(value)
