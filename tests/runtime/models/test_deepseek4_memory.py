"""What sequences of DeepSeek V4 Flash remember: memory of its dimensions, without its weights."""

from collections.abc import Callable
from timeit import repeat
from typing import cast

import numpy as np
import pytest

from runtime.gguf import open_model
from runtime.kernels.routing import SQRT_SOFTPLUS
from runtime.memory.layout import MemoryLayout
from runtime.memory.points import Tail
from runtime.memory.pool import BlockPool
from runtime.models.deepseek4 import V4, Index, Memory
from runtime.models.hyper import Layer
from runtime.plan.arena import Arena
from runtime.plan.builder import Plan
from runtime.plan.experts import Gating
from runtime.plan.options import PlanOptions
from runtime.plan.values import Heads
from runtime.plan.weights import Weights
from tests.shared_data import shared
from tools import bench_capture

N_CTX = 32768
MIB = 1 << 20
OF_A_PEER = 145.55 * MIB
"""A checkpoint of ik_llama.cpp at this context, as the description of the architecture derives it."""

FLASH = V4(
    layers=tuple(Layer(i, f"blk.{i}.", Heads(64, 1, 512, 512), 2048) for i in range(43)),
    drafter=None,
    ratios=(0, 0, *(4, 128) * 20, 4),
    n_embd=4096, d=512, n_rot=64, q_rank=1024, window=128, n_groups=8, out_rank=1024,
    index=Index(64, 128, 512), gating=Gating(256, 6, SQRT_SOFTPLUS), n_hashed=3, n_shared=1,
    limits=(10.0,) * 43, shared_limits=(10.0,) * 43, eps=1e-6,
)  # fmt: skip


@pytest.fixture(scope="module")
def layout() -> MemoryLayout:
    """Of a file of the architecture nothing is taken but that its attention is causal."""
    file = open_model(shared("models/dsv4/dsv4-tiny-a-f32.gguf"))
    plan = Plan(file, cast(Weights, None), Arena(), PlanOptions(N_CTX, 512, 4, 4))
    memory = Memory(plan, FLASH)
    for ratio in FLASH.ratios:
        memory.layer(ratio)
    return MemoryLayout(tuple(group.layout() for group in plan.groups), plan.tail.layout())


@pytest.fixture(scope="module")
def pool(layout: MemoryLayout) -> BlockPool:
    return BlockPool(layout, N_CTX // 256)


def grown(pool: BlockPool, n_tokens: int) -> Tail:
    """A tail of a sequence that came so far, its rings full of what differs from row to row."""
    assert pool.tails is not None
    tail = Tail(pool.tails)
    tail.reserve(n_tokens)
    assert tail._rings is not None
    words = tail._rings.bytes.view(np.uint32)
    words[:] = np.arange(len(words), dtype=np.uint32)
    tail.commit(0)
    return tail


def test_compressed_rows_take_their_bytes_per_token_and_no_more(layout: MemoryLayout) -> None:
    """CSA and index rows for 4 tokens, HCA rows for 128, in f16."""
    csa, index, hca = 21 * 512 * 2 / 4, 21 * 128 * 2 / 4, 20 * 512 * 2 / 128
    assert layout.block_bytes == 256 * (csa + index + hca) == 256 * 6880
    assert sorted(group.unit for group in layout.groups) == [16, 16, 128]
    assert layout.block_bytes * (N_CTX // 256) == 215 * MIB


def test_emberd_bench_measures_a_tail_of_these_dimensions(layout: MemoryLayout) -> None:
    assert layout.tail is not None
    assert [(r.row_bytes, r.capacity, r.period, r.back) for r in layout.tail.rings] == [
        (r.row_bytes, r.capacity, r.period, r.back) for r in bench_capture.FLASH.rings
    ]


def test_a_point_takes_at_most_17_1_mib_and_6_3_where_no_long_block_is_open(layout: MemoryLayout) -> None:
    assert layout.tail is not None
    sizes = {n: layout.tail.captured_bytes(n) for n in range(1, N_CTX + 1)}
    assert max(sizes.values()) <= 17.1 * MIB
    assert max(size for n, size in sizes.items() if n % 128 == 0) <= 6.3 * MIB
    raw, csa, hca = 127 * 43 * 1024, 7 * 21 * 4 * 2 * (1024 + 256), 127 * 20 * 4 * 2 * 512
    assert max(sizes.values()) == raw + csa + hca


def test_32_points_at_intervals_cost_less_than_two_of_a_peer_s_checkpoints(layout: MemoryLayout) -> None:
    assert layout.tail is not None
    total = sum(layout.tail.captured_bytes(512 * i) for i in range(1, 33))
    assert total < 2 * OF_A_PEER


@pytest.mark.parametrize("n_tokens", [1, 100, 8192, 8319, N_CTX - 1])
def test_points_are_what_was_promised_and_come_back_as_they_were(
    pool: BlockPool, n_tokens: int, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Times are reported beside those of a plain copy (``--junit-xml``); a busy machine decides nothing."""
    tail = grown(pool, n_tokens)
    point = tail.capture(n_tokens)
    assert pool.layout.tail is not None
    assert point.n_bytes == pool.layout.tail.captured_bytes(n_tokens)
    tail.load(point)
    again = tail.capture(n_tokens)
    assert all(map(np.array_equal, again.parts, point.parts))
    works = {
        "copy": lambda: [np.copyto(new, part) for new, part in zip(again.parts, point.parts, strict=True)],
        "capture": lambda: tail.capture(n_tokens),
        "load": lambda: tail.load(point),
    }
    for name, work in works.items():
        record_testsuite_property(
            f"dsv4 point at {n_tokens}, {name}, ms", round(1e3 * min(repeat(work, number=1, repeat=5)), 3)
        )
