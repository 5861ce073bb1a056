"""Models with states: what a step does to them, and what their files may not say."""

import ctypes
import threading
from pathlib import Path

import numpy as np
import pytest

from runtime.errors import ModelError, StepCancelled
from runtime.evaluate import LinearSequence
from runtime.model import LoadedModel, ModelOptions, load_model
from runtime.runner import Run
from tests.runtime.evaluation import DELTA_ARCHS, HYBRID_ARCHS, RECURRENT_ARCHS, all_logits, arch, model
from tests.runtime.rewriting import rewritten

N = 90


def prompt(loaded: LoadedModel) -> np.ndarray:
    return np.random.default_rng(0).integers(0, loaded.runner.n_vocab, N).astype(np.int32)


def state_before(loaded: LoadedModel, run: Run) -> bytes:
    tail = loaded.runner.layout.tail
    assert tail is not None and tail.state_bytes > 0
    return ctypes.string_at(run.tail.before, tail.state_bytes)


@pytest.mark.parametrize("name", [*RECURRENT_ARCHS, "lfm2", "falcon-h1", "qwen35", "kimi-linear"])
def test_a_step_that_is_given_up_leaves_its_state_and_is_repeated_exactly(name: str) -> None:
    with model(arch(name), n_ctx=256) as loaded:
        runner, tokens = loaded.runner, prompt(loaded)
        expected = all_logits(loaded, tokens)
        for delay in (0.0, 0.0002, 0.0005, 0.001, 0.002):
            sequence = LinearSequence(runner, N)
            list(sequence.evaluate(tokens[:20]))
            run = sequence.run(tokens[20:], "all")
            state = state_before(loaded, run)
            timer = threading.Timer(delay, runner.cancel)
            timer.start()
            if not delay:
                timer.join()
            try:
                runner.step([run])
            except StepCancelled:
                assert state_before(loaded, run) == state
            else:
                assert delay
            timer.join()
            try:  # what came too late for that step ends the next
                logits = runner.step([run])
            except StepCancelled:
                logits = runner.step([run])
            assert np.array_equal(logits, expected[20:]), delay


def test_experts_may_work_on_a_projection(tmp_path: Path) -> None:
    """A permutation of what they see, and of what they say."""
    order = np.random.default_rng(3).permutation(64)
    chosen = np.eye(64, dtype=np.float32)[order]

    def permuted(name: str, data: np.ndarray) -> np.ndarray:
        if "ffn_up_exps" in name:
            return data[:, :, order]
        return data[:, order] if "ffn_down_exps" in name else data

    path = tmp_path / "model.gguf"
    more = {"down": chosen, "up": np.ascontiguousarray(chosen.T)}
    more = {f"blk.1.ffn_latent_{way}.weight": matrix for way, matrix in more.items()}
    rewritten("nemotron_h_moe", path, permuted, more=more)
    with model(arch("nemotron_h_moe"), n_ctx=256) as plain, model(path, n_ctx=256) as latent:
        tokens = prompt(plain)
        assert np.abs(all_logits(plain, tokens) - all_logits(latent, tokens)).max() < 1e-4


@pytest.mark.parametrize("name", [*RECURRENT_ARCHS, *HYBRID_ARCHS, *DELTA_ARCHS])
def test_a_point_taken_anywhere_goes_on_with_the_same_bits(name: str) -> None:
    with model(arch(name), n_ctx=256) as loaded:
        tokens = prompt(loaded)
        expected = all_logits(loaded, tokens)
        at = sorted({1, 2, 3, 31, 32, 33, *np.random.default_rng(1).integers(4, N - 1, 4).tolist()})
        source = LinearSequence(loaded.runner, N)
        for n in at:
            list(source.evaluate(tokens[source.n_tokens : n]))
            resumed = LinearSequence(loaded.runner, N)
            resumed.load(source.capture(), source)
            rest = np.concatenate([step.copy() for step in resumed.evaluate(tokens[n:], (7,))])
            assert np.array_equal(rest, expected[n:]), n


def test_identity_names_the_arithmetic_that_made_the_state_and_no_other() -> None:
    families = {}
    for name in ("llama", "lfm2", "mamba2", "rwkv7", "qwen35"):
        with model(arch(name), n_ctx=256) as loaded:
            families[name] = {key for key, _ in loaded.identity if key.startswith("numerics.")}
    dense = families["llama"]
    assert families["lfm2"] == dense | {"numerics.conv"}
    assert families["mamba2"] == dense | {"numerics.conv", "numerics.mamba"}
    assert families["rwkv7"] == dense | {"numerics.wkv"}
    assert families["qwen35"] == dense | {"numerics.conv", "numerics.delta-net"}


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("mamba2", "blk.1.ssm_dt.bias"),
        ("mamba2", "blk.1.attn_norm.weight"),
        ("mamba", "blk.0.ssm_d"),
        ("rwkv7", "blk.1.time_mix_v0.weight"),
        ("rwkv7", "blk.0.time_mix_ln.bias"),
        ("lfm2", "blk.0.shortconv.conv.weight"),
    ],
)
def test_a_file_without_a_tensor_is_refused(name: str, tensor: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    rewritten(name, path, lambda each, data: None if each == tensor else data)
    with pytest.raises(ModelError, match=f"tensor {tensor} is missing"):
        load_model(path, ModelOptions(n_ctx=256)).close()


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("mamba2", "ssm.state_size=int:20", "128 channels of 20 states are not whole 16s"),
        ("mamba2", "ssm.state_size=int:4096", "not supported"),
        ("mamba2", "ssm.time_step_rank=int:0", "time_step_rank"),
        ("mamba2", "ssm.time_step_rank=int:3", "3 heads, 2 groups do not fit"),
        ("mamba2", "ssm.time_step_rank=int:16", "heads of 8 channels"),
        ("mamba2", "ssm.group_count=int:3", "3 groups do not fit"),
        ("mamba2", "ssm.inner_size=int:256", "expected"),
        ("mamba2", "ssm.inner_size=int:0", "inner_size"),
        ("mamba2", "ssm.inner_size=int:1073741824", "1073741824 channels"),
        ("mamba2", "ssm.conv_kernel=int:3", "expected"),
        ("mamba2", "ssm.conv_kernel=int:65", "65 taps"),
        ("mamba", "ssm.time_step_rank=int:8", "expected"),
        ("mamba", "ssm.dt_b_c_rms=bool:true", "rank 4"),
        ("lfm2", "shortconv.l_cache=int:0", "l_cache"),
        ("lfm2", "shortconv.l_cache=int:4", "expected"),
        ("rwkv7", "wkv.head_size=int:48", "do not fill"),
        ("rwkv7", "wkv.head_size=int:8", "heads of 8 values are not supported"),
        ("rwkv7", "embedding_length=int:1048576", "embedding_length"),
        ("nemotron_h", "attention.head_count=int:0", "make no sense"),
        ("falcon-h1", "attention.head_count_kv=int:0", "head_count_kv"),
        ("nemotron_h_moe", "expert_used_count=int:9", "expert selection"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_one_line(name: str, override: str, message: str) -> None:
    overrides = [f"{name}.{override}"]
    with pytest.raises(ModelError, match=message) as error:
        load_model(arch(name), ModelOptions(n_ctx=256, overrides=overrides)).close()
    assert "\n" not in str(error.value)


def test_attention_beside_short_convolutions_has_the_window_of_the_file() -> None:
    tokens = np.random.default_rng(0).integers(0, 288, N).astype(np.int32)
    results = []
    for overrides in ([], ["lfm2.attention.sliding_window=int:16"]):
        loaded = load_model(arch("lfm2"), ModelOptions(n_ctx=256, max_outputs=N, overrides=overrides))
        results.append(all_logits(loaded, tokens))
        assert np.array_equal(all_logits(loaded, tokens, (7,)), results[-1])
        loaded.close()
    full, windowed = results
    assert np.array_equal(full[:16], windowed[:16])
    assert (np.abs(full[16:] - windowed[16:]).max(axis=1) > 1e-3).all()
