"""Checked mode (EMBERD_CHECKED=1): every address is asserted, before a plan runs and while it does.

Kernels take plain addresses, and a wrong one silently spoils whatever lies there. In checked mode

- each op's parameters must lead into memory that the plan owns, for the largest step (`extents`);
- each run's blocks and tail must be in use, in a pool of the plan's layout;
- ops run one at a time, and what lies between buffers is looked at after each.

Bits are the same; steps take several times as long.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from runtime.errors import CheckFailed
from runtime.gguf import ModelFile
from runtime.kernels.tape import Native, Op
from runtime.memory import points
from runtime.memory.layout import BLOCK, MemoryLayout
from runtime.memory.pool import in_use
from runtime.plan import (  # noqa: F401 - they register their ops
    extents_altup,
    extents_deepseek4,
    extents_delta,
    extents_latent,
    extents_recurrent,
)
from runtime.plan.arena import Region
from runtime.plan.builder import Plan
from runtime.plan.extents import Sizes, Span, extent
from runtime.runner import Run


def wanted() -> bool:
    return os.environ.get("EMBERD_CHECKED", "0") not in ("", "0")


class Checker:
    """Asserts what one plan touches, from its making on. Errors of every method: CheckFailed."""

    def __init__(self, plan: Plan, layout: MemoryLayout) -> None:
        self._arena = plan.arena
        self._layout = layout
        options = plan.options
        sizes = Sizes(options.n_ubatch, options.max_outputs, options.max_runs, options.n_ctx, plan.n_vocab)
        regions = sorted([*plan.arena.regions, *_mapped(plan.file)], key=lambda r: r.address)
        starts = [region.address for region in regions]
        for index, (op, params) in enumerate(zip(plan.ops, plan.tape, strict=True)):
            where = f"op {index}, {op.name}"
            for span in _spans(where, op, sizes, params):
                at = bisect_right(starts, span.address) - 1
                _check_span(where, span, regions[at] if at >= 0 else None)

    def runs(self, runs: Sequence[Run]) -> None:
        """What the runs of a step name must be there: tails, and rows of blocks as far as any query sees."""
        for i, run in enumerate(runs):
            if self._layout.tail is not None and not points.in_use(self._layout.tail, run.tail):
                raise CheckFailed(f"run {i}: its state or rings are not in use, {run.tail}")
            end = -(-(run.start + len(run.tokens)) // BLOCK)
            for g, (group, table) in enumerate(zip(self._layout.groups, run.tables, strict=True)):
                if table.dtype != np.int64 or not table.flags.c_contiguous or len(table) < end:
                    raise CheckFailed(f"run {i}: the block table of group {group.name} is not int64 [{end}]")
                for j in range(group.first_block(run.start), end):
                    if not in_use(self._layout, g, int(table[j])):
                        at = f"{int(table[j]):#x}"
                        raise CheckFailed(f"run {i}: block {j} of group {group.name}, {at}, is not in use")

    def after(self, index: int, op: Op) -> None:
        """Nothing may have been written between buffers."""
        region = self._arena.overrun()
        if region is not None:
            raise CheckFailed(f"op {index}, {op.name}, wrote beyond {_describe(region)}")


def _mapped(file: ModelFile) -> list[Region]:
    return [
        Region(name, file.tensor_bytes(name).ctypes.data, tensor.n_bytes)
        for name, tensor in file.tensors.items()
    ]


def _spans(where: str, op: Op, sizes: Sizes, params: Sequence[int | Native]) -> Iterator[Span]:
    """Lazily: a descriptor may only be read once its own span was found to be sound."""
    spans = extent(op)
    if spans is None:
        raise CheckFailed(f"{where}: runtime/plan/extents.py does not say what it touches")
    try:
        return spans(sizes, *params)
    except TypeError:
        raise CheckFailed(f"{where}: takes other parameters than the {len(params)} on the tape") from None


def _check_span(where: str, span: Span, region: Region | None) -> None:
    wanted = f"{where}: parameter {span.name} needs {span.n_bytes} bytes at {span.address:#x}"
    if region is None or span.address >= region.address + max(1, region.n_bytes):
        raise CheckFailed(f"{wanted}, where nothing of the plan is")
    if span.address + span.n_bytes > region.address + region.n_bytes:
        left = region.address + region.n_bytes - span.address
        raise CheckFailed(f"{wanted}, {left} are left of {_describe(region)}")


def _describe(region: Region) -> str:
    return f"{region.name or 'a table'} ({region.n_bytes} bytes)"
