"""Which heads are rotated by Hadamard matrices before they are stored, and that stored bytes say so."""

from typing import cast

import pytest

from runtime.gguf import open_model
from runtime.kernels.kvstore import rotate_back
from runtime.plan.arena import Arena
from runtime.plan.attention import attend_heads
from runtime.plan.builder import Plan
from runtime.plan.options import PlanOptions
from runtime.plan.values import Heads
from runtime.plan.weights import Weights
from tests.runtime.evaluation import arch


def stored(
    types: tuple[str, str], *sizes: int, rotate_k: bool | None = None, rotate_v: bool | None = None
) -> tuple[str, int]:
    """The layout of layers with heads of these sizes, and how many outputs are rotated back."""
    key_type, value_type = types
    options = PlanOptions(
        n_ctx=256, n_ubatch=4, max_runs=1, max_outputs=1, key_type=key_type, value_type=value_type,
        rotate_k=rotate_k, rotate_v=rotate_v,
    )  # fmt: skip
    file = open_model(arch("llama"))
    try:
        p = Plan(file, cast(Weights, None), Arena(), options)
        group = p.cache_group("all")
        for d in sizes:
            heads = Heads(2, 1, d, d)
            attend_heads(p, p.buffer("qkv", sum(heads.widths)), group, heads, None)
        return group.layout().layout_id, p.ops.count(rotate_back)
    finally:
        file.close()


@pytest.mark.parametrize("kind", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])
def test_quantised_heads_of_64s_are_rotated_unless_somebody_objects(kind: str) -> None:
    by_default = stored((kind, kind), 64, 128)
    assert by_default[1] == 2
    assert by_default == stored((kind, kind), 64, 128, rotate_k=True, rotate_v=True)
    plain = stored((kind, kind), 64, 128, rotate_k=False, rotate_v=False)
    assert plain[1] == 0
    keys_only = stored((kind, kind), 64, 128, rotate_v=False)
    assert len({by_default[0], plain[0], keys_only[0]}) == 3


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_plain_heads_are_rotated_only_where_somebody_asks(kind: str) -> None:
    assert stored((kind, kind), 64) == stored((kind, kind), 64, rotate_k=False, rotate_v=False)
    assert stored((kind, kind), 64, rotate_k=True)[0] != stored((kind, kind), 64)[0]


def test_each_of_keys_and_values_and_each_layer_is_decided_alone() -> None:
    assert stored(("q8_0", "f16"), 64) == stored(("q8_0", "f16"), 64, rotate_k=True, rotate_v=False)
    assert stored(("f16", "q8_0"), 64) == stored(("f16", "q8_0"), 64, rotate_k=False, rotate_v=True)
    assert stored(("q8_0", "q8_0"), 64, 96)[1] == 1
    assert stored(("q8_0", "q8_0"), 96) == stored(("q8_0", "q8_0"), 96, rotate_k=False, rotate_v=False)
