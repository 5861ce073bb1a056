"""What a budget affords is what sequences then need."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.memory.arena import stride
from runtime.memory.layout import BLOCK, TILE, GroupLayout, MemoryLayout
from runtime.memory.sizing import affordable_context, pool_size, sequence_bytes

MIB = 1 << 20
# Gemma 3 270M: 3 layers that see everything and 15 that see 512 positions, a head of 256 each, f16
GEMMA = MemoryLayout(
    (
        GroupLayout("full", "", 3 * 2 * 256 * 2 * TILE),
        GroupLayout("window", "", 15 * 2 * 256 * 2 * TILE, window=512),
    )
)
LAYOUTS = st.builds(
    lambda full, window, n: MemoryLayout(
        (GroupLayout("full", "", full * TILE), GroupLayout("window", "", window * TILE, window=n))
    ),
    st.integers(1, 4000),
    st.integers(1, 4000),
    st.integers(1, 5000),
)


@settings(max_examples=200, deadline=None)
@given(
    layout=LAYOUTS,
    n_ubatch=st.integers(1, 2048),
    budget=st.integers(0, 1 << 30),
    at_most=st.integers(1, 40_000),
)
def test_the_longest_context_that_fits_is_found(
    layout: MemoryLayout, n_ubatch: int, budget: int, at_most: int
) -> None:
    n_ctx = affordable_context(layout, n_ubatch, budget, at_most)
    assert n_ctx <= at_most
    assert not n_ctx or sequence_bytes(layout, n_ctx, n_ubatch) <= budget
    assert n_ctx == at_most or sequence_bytes(layout, min(at_most, n_ctx + BLOCK), n_ubatch) > budget


@settings(max_examples=100, deadline=None)
@given(layout=LAYOUTS, n=st.integers(1, 4), n_ctx=st.integers(1, 20_000), budget=st.integers(0, 1 << 32))
def test_a_pool_has_addresses_for_all_that_its_memory_can_hold(
    layout: MemoryLayout, n: int, n_ctx: int, budget: int
) -> None:
    size = pool_size(layout, n, n_ctx, 512, budget)
    assert size.max_bytes >= max(budget, n * sequence_bytes(layout, n_ctx, 512))
    assert size.spare_bytes == size.max_bytes - n * sequence_bytes(layout, n_ctx, 512)
    assert size.n_blocks >= n * (-(-n_ctx // BLOCK) + 1)
    whole = sum(map(stride, layout.groups))
    assert size.n_blocks >= min(size.max_bytes // whole, 1 << 16)


def test_a_long_context_of_a_model_with_windows_takes_a_fraction_of_all_its_rows() -> None:
    assert 129 * GEMMA.block_bytes == 580.5 * MIB
    assert sequence_bytes(GEMMA, 32768, 512) == 128.75 * MIB
