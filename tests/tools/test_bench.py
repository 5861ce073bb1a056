"""`emberd bench` on random models, and beside llama-bench."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.evaluation import all_logits, model
from tools import bench
from tools.random_models import RANDOM_MODELS, write_random

PEER = """#!/usr/bin/env python3
import json, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print(json.dumps([{"n_prompt": int(flags["-p"]), "n_gen": int(flags["-n"]), "avg_ts": 0.5}]))
"""


@pytest.fixture
def random_mamba(tmp_path: Path) -> Path:
    path = tmp_path / "mamba2.gguf"
    write_random("mamba2", path, small=True)
    return path


def program(folder: Path, text: str) -> Path:
    path = folder / "llama-bench"
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(flags))


@pytest.mark.parametrize("name", sorted(RANDOM_MODELS))
def test_random_models_give_logits_that_differ_by_token(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.gguf"
    write_random(name, path, small=True)
    with model(path, n_ctx=256, n_ubatch=32) as loaded:
        logits = all_logits(loaded, np.arange(20, dtype=np.int32))
    assert np.isfinite(logits).all()
    assert logits.std() > 0.05 and len({row.tobytes() for row in logits}) == len(logits)


def test_random_models_are_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_random("mamba2", tmp_path / name, small=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_speeds_come_in_llama_benchs_keys(random_mamba: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-m", str(random_mamba), "-p", "20", "-n", "4", "-d", "0,30", "-r", "2", "-o", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    sizes = [(row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows]
    assert sizes == [(20, 0, 0), (20, 0, 30), (0, 4, 0), (0, 4, 30)]
    assert all(row["avg_ts"] > 0 and len(row["samples_ts"]) == 2 for row in rows)


def test_the_ratio_to_the_peer_is_that_of_medians(
    random_mamba: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = program(tmp_path, PEER)
    flags = ("-m", str(random_mamba), "-p", "20", "-n", "0", "-r", "3", "--against", str(peer))
    assert run(*flags, "-o", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["ratio"] == pytest.approx(row["median_ts"] / 0.5)
    assert run(*flags) == 0
    assert "| 0.50 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file or directory"),
        ("#!/bin/sh\necho what >&2\nexit 3\n", "exit 3: what"),
        ("#!/bin/sh\necho '[]'\n", "does not answer as llama-bench does"),
        ("#!/bin/sh\necho hello\n", "does not answer as llama-bench does"),
    ],
)
def test_a_peer_that_fails_is_named_in_one_line(
    text: str | None, message: str, random_mamba: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = program(tmp_path, text) if text is not None else tmp_path / "nothing"
    assert run("-m", str(random_mamba), "-p", "4", "-n", "0", "-r", "1", "--against", str(peer)) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"{peer}: {message}"
