"""`emberd inspect` shows what can be read of any file, and says why it cannot run."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import ModelError
from tests.runtime.gguf.writer import STRING, U32, File, Tensor, tiny_model
from tests.shared_data import shared
from tools import inspect


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    inspect.add_arguments(parser)
    return inspect.run(parser.parse_args(list(map(str, arguments))))


def report(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert run(*arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_model_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, shared("models/archs/llama.gguf"), "--tensors", "-c", "100")
    assert found["can_run"] and found["reasons"] == []
    assert found["architecture"] == "llama"
    assert found["n_tensors"] == len(found["tensors"]) == sum(t["tensors"] for t in found["types"])
    assert found["memory"]["weights"] == sum(t["bytes"] for t in found["tensors"])
    n_rows = 112  # whole tiles of 16
    assert found["memory"]["kv_cache"] == 3 * 2 * (16 + 16) * 2 * n_rows
    assert found["memory"]["state"] == 0
    assert found["metadata"]["tokenizer.ggml.tokens"]["length"] > 8
    assert len(found["metadata"]["tokenizer.ggml.tokens"]["first"]) == 8


def test_memory_is_what_the_architecture_remembers(capsys: pytest.CaptureFixture[str]) -> None:
    mamba = report(capsys, shared("models/archs/mamba2.gguf"))["memory"]
    heads, head, state, channels, taps, layers = 8, 16, 16, 192, 4, 3
    assert mamba["kv_cache"] == 0
    assert mamba["state"] == 4 * layers * (heads * head * state + channels * (taps - 1))
    local, everywhere, row, window, step = 3, 1, 2 * (32 + 32) * 2, 16, 512
    gemma = report(capsys, shared("models/archs/gemma3.gguf"), "-c", "1024")["memory"]
    assert gemma["kv_cache"] == row * (everywhere * 1024 + local * (window + step))
    latent = report(capsys, shared("models/archs/deepseek2.gguf"), "-c", "160")["memory"]
    assert latent["kv_cache"] == 3 * (64 + 16) * 2 * 160


def test_what_only_the_plan_finds_is_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(
        capsys, shared("models/archs/llama.gguf"), "--override-kv", "llama.rope.dimension_count=int:6"
    )
    assert not found["can_run"]
    assert "rope over 6 of 16 dims" in found["reasons"][0]


def test_the_text_has_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shared("models/archs/llama.gguf"), "--tensors") == 0
    text = capsys.readouterr().out
    for part in ("architecture  'llama'", "runs here     yes", "token_embd.weight", "llama.block_count = 3"):
        assert part in text


def test_reasons_of_a_file_that_cannot_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tiny_model()
    file.metadata[0] = ("general.architecture", STRING, file.metadata[0][2].replace(b"llama", b"hydra"))
    file.tensors.append(Tensor("t", (32,), type_id=77))
    path = file.write(tmp_path / "m.gguf")
    os.truncate(path, path.stat().st_size - 170)
    found = report(capsys, path)
    assert not found["can_run"]
    for part in (
        "type 77",
        "truncated: expected at least",
        "architecture 'hydra' is not supported",
        "no tokenizer",
    ):
        assert any(part in reason for reason in found["reasons"]), part
    assert found["memory"]["kv_cache"] is None


def test_a_vocabulary_alone_and_a_missing_architecture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = report(capsys, File().put("a", U32, 1).write(tmp_path / "m.gguf"))
    assert found["architecture"] is None
    assert any("no general.architecture" in reason for reason in found["reasons"])
    assert any("a vocabulary alone cannot be run" in reason for reason in found["reasons"])


def test_overrides_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "m.gguf")
    found = report(capsys, path, "--override-kv", "llama.block_count=int:9")
    assert found["metadata"]["llama.block_count"] == 9


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        run(tmp_path / "missing.gguf")
