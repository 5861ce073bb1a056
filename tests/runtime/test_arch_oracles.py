"""Logits of the tiny models against those that llama.cpp computed for the same weights."""

import json

import numpy as np
import pytest

from runtime.errors import ModelError, UnsupportedModel
from runtime.gguf import open_model
from runtime.model import ModelOptions, load_model
from runtime.models import SUPPORTED
from tests.runtime.evaluation import ARCHS, ENCODERS, all_logits, arch, model

# ten to a hundred times the noise of the reference, far below any mistake
TOLERANCE, TOLERANCES = 1e-3, {"gemma3n": 1e-2}


def oracle(name: str, array: str) -> np.ndarray:
    """The array, or its exact-GELU form where there is one: the reference's GELU table has errors."""
    arrays = np.load(arch(name, "npz"))
    exact = f"{array}_exactgelu"
    return arrays[exact] if exact in arrays else arrays[array]


@pytest.mark.parametrize("name", ARCHS)
def test_prompt_logits_and_greedy_continuation_equal_the_reference_with_f32_caches(name: str) -> None:
    prompt = oracle(name, "prompt_ids").astype(np.int32)
    expected = oracle(name, "gen_tokens").astype(np.int32)
    with model(arch(name), n_ctx=256, cache_type="f32") as loaded:
        logits = all_logits(loaded, np.concatenate([prompt, expected]))
    n, tolerance = len(prompt), TOLERANCES.get(name, TOLERANCE)
    assert np.abs(logits[:n] - oracle(name, "prompt_logits")).max() < tolerance
    assert np.abs(logits[n:] - oracle(name, "gen_logits")).max() < tolerance
    assert logits[n - 1 : -1].argmax(axis=1).tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss"])
def test_identity_names_what_decides_cached_bytes(name: str) -> None:
    with model(arch(name), n_ctx=256) as f16, \
         model(arch(name), n_ctx=128, n_threads=1) as same, \
         model(arch(name), n_ctx=256, cache_type="f32") as f32:  # fmt: skip
        assert f16.identity == same.identity
        assert f16.identity != f32.identity
        json.dumps(f16.identity)


def test_phi3_rotates_by_its_long_factors_beyond_the_original_context_and_says_so() -> None:
    tokens = oracle("phi3", "prompt_ids").astype(np.int32)
    with model(arch("phi3"), n_ctx=512) as short, model(arch("phi3"), n_ctx=513) as long:
        assert short.identity != long.identity
        assert np.abs(all_logits(short, tokens) - all_logits(long, tokens)).max() > 0.1


def test_hunyuans_alpha_grows_the_rope_base_as_ntk_scaling_does() -> None:
    """``base * alpha ** (d / (d - 2))`` with heads of 32."""
    tokens = oracle("hunyuan-dense", "prompt_ids").astype(np.int32)
    options = ["rope.scaling.alpha=float:50", f"rope.freq_base=float:{10000.0 * 50 ** (32 / 30)}"]
    results = []
    for option in options:
        overrides = [f"hunyuan-dense.{option}"]
        loaded = load_model(
            arch("hunyuan-dense"), ModelOptions(n_ctx=256, max_outputs=len(tokens), overrides=overrides)
        )
        results.append(all_logits(loaded, tokens))
        loaded.close()
    assert np.abs(results[0] - results[1]).max() < 1e-4


def test_every_supported_architecture_is_held_to_an_oracle() -> None:
    tested = {open_model(arch(name)).architecture for name in (*ARCHS, *ENCODERS, "t5")}
    # two share every line with qwen3moe and t5; test_deepseek4.py has the oracles of the third
    assert SUPPORTED - tested == {"qwen3vlmoe", "t5encoder", "deepseek4"}


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("llama", "general.architecture=str:nosuch", "'nosuch'"),
        ("llama", "llama.rope.dimension_count=int:8", "rope over 8 of 16 dims"),
        (
            "llama",
            "llama.feed_forward_length=int:32",
            r"ffn_gate.weight has shape \[64, 96\], expected \[64, 32\]",
        ),
        ("llama", "llama.attention.head_count_kv=int:3", "expected"),
        ("llama", "llama.attention.head_count=int:0", "head_count"),
        ("llama", "llama.embedding_length=int:262160", "embedding_length"),
        ("llama", "llama.block_count=int:4", "blk.3.* is missing"),
        ("llama", "llama.rope.freq_base=float:0", "freq_base"),
        ("mistral3", "mistral3.rope.scaling.type=str:dynamic", "'dynamic'"),
        ("mistral3", "mistral3.rope.scaling.yarn_beta_fast=float:0", "yarn"),
        ("mistral3", "mistral3.rope.scaling.factor=float:-2", "rope scaling"),
        ("granite", "granite.logit_scale=float:0", "logit_scale"),
        ("hunyuan-dense", "hunyuan-dense.rope.scaling.alpha=float:-1", "alpha"),
        ("llama-moe", "llama.expert_used_count=int:5", "expert selection"),
        ("llama-moe", "llama.expert_count=int:5", "expected"),
        ("bailingmoe2", "bailingmoe2.expert_group_count=int:3", "expert selection"),
        ("qwen35", "qwen35.ssm.group_count=int:3", "4 heads over 3 of 16 values makes no sense"),
        ("qwen35", "qwen35.ssm.group_count=int:0", "group_count"),
        ("qwen35", "qwen35.ssm.state_size=int:32", "inner_size"),
        ("qwen35", "qwen35.ssm.conv_kernel=int:5", r"ssm_conv1d.weight has shape \[4, 128\]"),
        ("qwen35", "qwen35.full_attention_interval=int:3", "attn_q.weight is missing"),
        ("gemma4", "gemma4.attention.shared_kv_layers=int:1", "1 of 5 layers cannot share"),
        ("gemma4", "gemma4.attention.shared_kv_layers=int:4", "4 of 5 layers cannot share"),
        ("gemma4", "gemma4.attention.key_length_swa=int:32", "attn_q.weight has shape"),
        ("gemma4", "gemma4.embedding_length_per_layer_input=int:0", "inp_gate.weight is unknown"),
        ("kimi-linear", "kimi-linear.kda.head_dim=int:0", "4 heads over 4 of 0 values makes no sense"),
        ("kimi-linear", "kimi-linear.kda.head_dim=int:8", "4 heads of 8 values is not supported"),
        ("kimi-linear", "kimi-linear.attention.head_count=int:0", "make"),
        ("kimi-linear", "kimi-linear.ssm.conv_kernel=int:3", r"ssm_conv1d_q.weight has shape \[4, 1, 64\]"),
        ("qwen3next", "qwen3next.ssm.group_count=int:1", "attn_qkv.weight has shape"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_one_line(name: str, override: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        load_model(arch(name), ModelOptions(n_ctx=256, overrides=[override])).close()
    assert "\n" not in str(error.value)


def test_a_context_beyond_learned_positions_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="256 positions"):
        load_model(arch("gpt2"), ModelOptions(n_ctx=257))


def test_a_tensor_that_the_architecture_does_not_know_is_refused() -> None:
    """A Qwen 3 file that claims to be Qwen 2 would run without its head norms, and be wrong."""
    kinds = {bool: "bool", int: "int", float: "float", str: "str"}
    overrides = [
        f"{key.replace('qwen3.', 'qwen2.')}={kinds[type(value)]}:{value}"
        for key, value in open_model(arch("qwen3")).metadata.items()
        if key.startswith("qwen3.")
    ]
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.attn_(q|k)_norm\.weight is unknown in qwen2 models"):
        load_model(
            arch("qwen3"), ModelOptions(n_ctx=256, overrides=["general.architecture=str:qwen2", *overrides])
        )
