"""Models of the delta rule: forms that their files may have, and what may not be missing in them."""

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


def test_qwen3next_may_hold_queries_keys_values_and_gates_in_one_matrix_grouped_by_heads_of_keys(
    tmp_path: Path,
) -> None:
    """Two heads of keys, each shared by two of values, of 16 values each."""
    tensors = rewritten("qwen3next", tmp_path / "same.gguf", lambda name, data: data)
    grouped = {}
    for i in range(3):
        qkv, z = (tensors[f"blk.{i}.attn_{name}.weight"].astype(np.float32) for name in ("qkv", "gate"))
        q, k, v = np.split(qkv, [32, 64])
        parts = [part.reshape(2, -1, 64) for part in (q, k, v, z)]
        grouped[f"blk.{i}.ssm_in.weight"] = np.concatenate(parts, axis=1).reshape(-1, 64)
    path = tmp_path / "grouped.gguf"
    apart = ("attn_qkv.weight", "attn_gate.weight")
    rewritten("qwen3next", path, lambda name, data: None if name.endswith(apart) else data, more=grouped)
    assert np.array_equal(logits(path), logits(arch("qwen3next")))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen35", "blk.1.ssm_a"),
        ("qwen35", "blk.1.ssm_dt.bias"),
        ("qwen35", "blk.1.ssm_norm.weight"),
        ("qwen35", "blk.1.ssm_alpha.weight"),
        ("qwen35", "blk.3.attn_q_norm.weight"),
        ("kimi-linear", "blk.1.ssm_g_b.weight"),
        ("kimi-linear", "blk.1.ssm_conv1d_k.weight"),
    ],
)
def test_a_file_without_a_tensor_is_refused(name: str, tensor: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    rewritten(name, path, lambda each, data: None if each == tensor else data)
    with pytest.raises(ModelError, match=f"tensor {tensor} is missing"):
        load_model(path, ModelOptions(n_ctx=256)).close()
