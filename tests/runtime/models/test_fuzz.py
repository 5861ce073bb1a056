"""Whatever a model file says, it is run or refused in one line: no crash, no hang, no stray write."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.errors import ModelError
from runtime.gguf import GGMLType
from runtime.model import ModelOptions, load_model
from tests.runtime.evaluation import DELTA_ARCHS, HYBRID_ARCHS, LATENT_ARCHS, RECURRENT_ARCHS, arch
from tests.runtime.gguf.writer import U32, File, Tensor, scalar
from tests.runtime.models import fuzz

FUZZED = (
    *(*RECURRENT_ARCHS, *HYBRID_ARCHS, *DELTA_ARCHS, *LATENT_ARCHS),
    *("gemma3n", "gemma4", "gemma4-moe", "deepseek4"),
)


def refusal(file: File, folder: Path, n_ctx: int = 64) -> str:
    options = ModelOptions(n_ctx=n_ctx, n_ubatch=8, n_threads=1, max_runs=1, max_outputs=1)
    with pytest.raises(ModelError) as refused:
        load_model(file.write(folder / "m.gguf"), options)
    return str(refused.value)


def with_tensor(file: File, name: str, change: Callable[[Tensor], Tensor]) -> File:
    return replace(file, tensors=[change(t) if t.name == name else t for t in file.tensors])


def test_a_norm_of_integers_is_refused(tmp_path: Path) -> None:
    file = with_tensor(
        fuzz.read(arch("mamba")), "blk.1.attn_norm.weight", lambda t: replace(t, type=GGMLType.I32)
    )
    assert refusal(file, tmp_path) == "m.gguf: tensor blk.1.attn_norm.weight has type I32"


def test_a_shared_expert_wider_than_the_stream_is_refused(tmp_path: Path) -> None:
    """Its rows are added to the stream's, beyond whose end nothing may be written."""
    file = with_tensor(
        fuzz.read(arch("qwen3next")), "blk.0.ffn_down_shexp.weight", lambda t: fuzz.resized(t, (32, 256))
    )
    message = "m.gguf: rows of 256 values cannot be added to rows of 64"
    assert refusal(file, tmp_path) == message


def test_a_context_of_nothing_is_refused(tmp_path: Path) -> None:
    file = fuzz.read(arch("mamba"))
    file.metadata = [
        (name, kind, scalar(U32, 0) if name == "mamba.context_length" else value)
        for name, kind, value in file.metadata
    ]
    expected = "m.gguf: mamba.context_length is 0 and no context size was given"
    assert refusal(file, tmp_path, n_ctx=0) == expected


def test_a_convolution_that_sees_no_past_is_refused(tmp_path: Path) -> None:
    """Its layers would have a state of no bytes."""
    file = fuzz.read(arch("lfm2"))
    file.metadata = [
        (name, kind, scalar(U32, 1) if name == "lfm2.shortconv.l_cache" else value)
        for name, kind, value in file.metadata
    ]
    for layer in range(8):
        file = with_tensor(
            file, f"blk.{layer}.shortconv.conv.weight", lambda t: fuzz.resized(t, (1, *t.shape[1:]))
        )
    message = "m.gguf: convolutions of 1 taps over [64] channels are not supported"
    assert refusal(file, tmp_path) == message


@pytest.mark.slow
def test_models_with_hostile_numbers_and_tensors_are_run_or_refused() -> None:
    command = [sys.executable, "-m", "tests.runtime.models.fuzz", "--files", "2500", "--seed", "1"]
    root = Path(__file__).resolve().parents[3]
    models = [str(arch(name)) for name in FUZZED]
    done = subprocess.run([*command, *models], capture_output=True, text=True, cwd=root, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
