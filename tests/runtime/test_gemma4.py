"""Gemma 4: forms that its files may have, and what may not be missing in them."""

from pathlib import Path

import numpy as np
import pytest

from runtime.errors import ModelError
from runtime.model import ModelOptions, load_model
from tests.runtime.evaluation import all_logits, arch, model
from tests.runtime.rewriting import rewritten

TOKENS = np.random.default_rng(0).integers(0, 256, 50).astype(np.int32)


def logits(path: Path) -> np.ndarray:
    with model(path, n_ctx=256) as loaded:
        return all_logits(loaded, TOKENS)


def test_gemma4_may_hold_the_gates_of_its_experts_apart(tmp_path: Path) -> None:
    tensors = rewritten("gemma4-moe", tmp_path / "same.gguf", lambda name, data: data)
    apart = {}
    for name, data in tensors.items():
        if name.endswith("ffn_gate_up_exps.weight"):
            for part, half in zip(("gate", "up"), np.split(data.astype(np.float32), 2, axis=1), strict=True):
                apart[name.replace("gate_up", part)] = np.ascontiguousarray(half)
    path = tmp_path / "apart.gguf"
    rewritten("gemma4-moe", path, lambda name, data: None if "gate_up" in name else data, more=apart)
    assert np.array_equal(logits(path), logits(arch("gemma4-moe")))


def test_what_layers_that_share_keys_and_values_have_of_their_own_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "more.gguf"
    more = {f"blk.3.attn_{name}.weight": np.ones((32, 64), np.float32) for name in ("k", "v")}
    rewritten("gemma4", path, lambda name, data: data, more=more)
    assert np.array_equal(logits(path), logits(arch("gemma4")))


def test_layers_that_share_keys_and_values_meet_them_as_they_were_stored_rotated() -> None:
    results = []
    for rotate in (False, True):
        options = ModelOptions(
            n_ctx=256,
            max_outputs=len(TOKENS),
            key_type="f32",
            value_type="f32",
            rotate_k=rotate,
            rotate_v=rotate,
        )
        loaded = load_model(arch("gemma4"), options)
        results.append(all_logits(loaded, TOKENS))
        loaded.close()
    assert not np.array_equal(*results)
    assert np.abs(results[0] - results[1]).max() < 1e-3


@pytest.mark.parametrize(
    "tensor", ["blk.4.inp_gate.weight", "per_layer_proj_norm.weight", "blk.1.attn_k.weight"]
)
def test_a_file_without_a_tensor_is_refused(tensor: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    rewritten("gemma4", path, lambda each, data: None if each == tensor else data)
    with pytest.raises(ModelError, match=f"tensor {tensor} is missing"):
        load_model(path, ModelOptions(n_ctx=256)).close()
