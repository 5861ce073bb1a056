"""Attention's bits under any shape, cache, mask, chunking, team and company, as hypothesis finds them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kernels import attention_layer as al
from runtime.kernels.kvtypes import KV_TYPES
from tests.runtime.ops.harness import bench
from tests.runtime.ops.test_attention import Layer, rows

N_CTX = 400  # past a partition's border
KINDS = st.sampled_from(sorted(KV_TYPES))
SIZES = st.lists(st.sampled_from((1, 2, 5, 16, 33, 100, 257)), min_size=1, max_size=4)


@dataclass(frozen=True)
class Schedule:
    """How a sequence is fed: chunk sizes in turn, threads, and rows of another sequence in every step."""

    sizes: tuple[int, ...] = (N_CTX,)
    n_threads: int = 1
    before: int = 0
    after: int = 0


SCHEDULES = st.builds(
    Schedule, SIZES.map(tuple), st.integers(1, 4), st.sampled_from((0, 1, 9)), st.sampled_from((0, 1, 9))
)


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    heads = kv_heads * group
    return {
        "heads": heads, "kv_heads": kv_heads,
        "dk": draw(st.sampled_from((32, 64, 96))), "dv": draw(st.sampled_from((32, 64, 96))),
        "n_ctx": N_CTX, "keys": draw(KINDS), "values": draw(KINDS), "rotate": draw(st.integers(0, 3)),
        "mask": draw(st.sampled_from((al.CAUSAL, al.CHUNKED, al.SYMMETRIC))),
        "window": draw(st.sampled_from((0, 1, 30, 300))), "softcap": draw(st.sampled_from((0.0, 5.0))),
        "sinks": draw(st.none() | st.just(np.linspace(-2, 2, heads))),
    }  # fmt: skip


def outputs(layer: dict[str, Any], n: int, schedule: Schedule) -> np.ndarray:
    with bench(schedule.n_threads) as b:
        it = Layer(b, **layer)
        x, others = rows(n, it.width), rows(N_CTX, it.width, seed=1)
        table, neighbours = it.table(), (it.table(), it.table())
        out: list[np.ndarray] = []
        at = 0
        while at < n:
            m = schedule.sizes[len(out) % len(schedule.sizes)]
            parts = [(x[at : at + m], at, table)]
            if schedule.before:
                parts.insert(0, (others[: schedule.before], 0, neighbours[0]))
            if schedule.after:
                parts.append((others[: schedule.after], 0, neighbours[1]))
            out.append(it.step(parts)[1 if schedule.before else 0])
            at += m
        return np.concatenate(out)


@settings(max_examples=60, deadline=None)
@given(layer=layers(), n=st.integers(1, N_CTX), schedule=SCHEDULES)
def test_no_schedule_changes_a_bit(layer: dict[str, Any], n: int, schedule: Schedule) -> None:
    if layer["mask"] == al.SYMMETRIC:
        schedule = replace(schedule, sizes=(N_CTX,))  # a query sees what follows it: all must be there
    expected = outputs(layer, n, Schedule())
    assert np.isfinite(expected).all()
    assert np.array_equal(outputs(layer, n, schedule), expected)
